"""A network as a plain Keras model: the weights that evaluation uses, and nothing that only this project knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from trainer.errors import UserError
from trainer.network import Network
from trainer.run.finished import FinishedRun
from trainer.run.full_precision import in_full_precision, is_mixed, with_values
from trainer.run.shipped import shipped_weights
from trainer.step.stage import in_stage
from trainer.step.trainer import Trainer

TOLERANCE = 1e-3  # of metrics; another order of additions may change a prediction or two


def save_plain_model(run: FinishedRun, network: str, path: Path) -> None:
    """Write the finished model of a network to a file that loads where nothing but Keras is.

    It computes in float32, whatever `trainer.precision` was: all variables are float32 already.

    Args:
        run: restored; it is left as it was.
        network: name of the network.
        path: of the file, which ends with ".keras".

    Raises:
        UserError: the network holds something that is no part of Keras, or the file cannot be written.
    """
    trainer = run.parts.trainer
    weights = shipped_weights(trainer, run.step)[network]
    model = strip_model(trainer, network)
    check_plain(model)
    with assigned(trainer.networks[network], weights):
        try:
            in_full_precision(model).save(path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"{path} cannot be written: {reason}. Expected a place that can.") from error


def strip_model(trainer: Trainer, network: str) -> keras.Model:
    """Return the model of a network without what hooks put in; it shares the network's variables.

    Args:
        trainer: with its hooks built.
        network: name of the network.
    """
    model = trainer.networks[network].model
    for hook in reversed(trainer.hooks):
        if hook.network == network:
            with in_stage(hook, "strip_model"):
                model = hook.strip_model(model)
    return model


def check_plain(model: keras.Model) -> None:
    """Refuse a model that would not load where nothing but Keras is.

    Args:
        model: any Keras model.

    Raises:
        UserError: names the layers, functions or other parts that are not of Keras.
    """
    foreign = [
        f"{layer.name} ({type(layer).__name__})"
        for layer in model._flatten_layers()
        if not _is_of_keras(type(layer).__module__)
    ] or sorted(set(_foreign_parts(keras.saving.serialize_keras_object(model))))
    if foreign:
        raise UserError(
            f"A plain Keras model holds parts of Keras alone. '{model.name}' also has: {', '.join(foreign)}. "
            "Expected a network without them."
        )


def _is_of_keras(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "keras"


def _foreign_parts(config: Any) -> Iterator[str]:
    """Yield the names of what a serialized model takes from elsewhere: functions, initializers, regularizers."""
    if isinstance(config, Mapping):
        if "module" in config and "class_name" in config and not _is_of_keras(config["module"]):
            name = config["class_name"]
            yield str(config["config"]) if name == "function" else str(name)
        for value in config.values():
            yield from _foreign_parts(value)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _foreign_parts(value)


@contextmanager
def assigned(network: Network, weights: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Give variables other values while the block runs; afterwards they are what they were.

    Args:
        network: whose variables they are.
        weights: values by variable name.
    """
    variables = network.variables
    before = {name: variables[name].numpy() for name in weights}
    try:
        for name, value in weights.items():
            variables[name].assign(value)
        yield
    finally:
        for name, value in before.items():
            variables[name].assign(value)


def compare(run: FinishedRun, network: str, model: keras.Model) -> dict[str, float]:
    """Return the metrics of a plain model on the test split, once it is certain that it is the run's own.

    Where the run computes in half precision, the model is compared in that, and its metrics are those in float32: what
    they differ by is rounding alone.

    Args:
        run: restored.
        network: name of the network for which the model stands.
        model: plain, as `save_plain_model` wrote it.

    Raises:
        UserError: they differ, so a hook changes what evaluation sees in a way that a plain model cannot hold.
    """
    expected = run.parts.test.run(run.step)
    stripped = strip_model(run.parts.trainer, network)
    own = with_values(stripped, model) if is_mixed(stripped) else model
    metrics = _metrics(run, network, own)
    for name, value in metrics.items():
        if not np.isclose(value, expected[name], rtol=TOLERANCE, atol=TOLERANCE):
            raise UserError(
                f"The plain model has {name}={value:.6g} on the test split, but the run has {expected[name]:.6g}: a "
                "hook changes what evaluation sees in a way that no plain model can hold. Expected a run without it."
            )
    return metrics if own is model else _metrics(run, network, model)


def _metrics(run: FinishedRun, network: str, model: keras.Model) -> dict[str, float]:
    """Return the metrics of a run on the test split with a model in the place of a network and its hooks."""
    parts, trainer = run.parts, run.parts.trainer
    networks = [
        replace(each, model=model, taps={}, tapped=None) if name == network else each
        for name, each in trainer.networks.items()
    ]
    hooks = [hook for hook in trainer.hooks if hook.network != network]
    found = parts.test.of(Trainer(networks, trainer.objectives, hooks, seed=trainer.seed)).run(run.step)
    return {name: value for name, value in found.items() if "metric/" in name}
