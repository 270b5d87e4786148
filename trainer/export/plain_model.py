"""A network as a plain Keras model: the weights that evaluation uses, and nothing that only this project knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from trainer.errors import UserError
from trainer.export.full_precision import with_values
from trainer.final_activation import put_back
from trainer.run.finished import FinishedRun
from trainer.run.shipped import shipped_weights
from trainer.step.stage import in_stage
from trainer.step.trainer import Trainer


def plain_copy(run: FinishedRun, network: str, *, full: bool = True) -> keras.Model:
    """Return the finished model of a network: a deep copy that shares nothing with the run, which stays as it was.

    It ends with the activation that the user's model has. All variables are float32 already, whatever
    `trainer.precision` was.

    Args:
        run: restored.
        network: name of the network.
        full: whether it also computes in float32, not in half precision.

    Raises:
        UserError: the network holds something that is no part of Keras.
    """
    trainer = run.parts.trainer
    shipped = shipped_weights(trainer, run.step)[network]
    variables = trainer.networks[network].variables
    values = {id(variables[name]): np.array(value) for name, value in shipped.items()}
    with put_back(strip_model(trainer, network), trainer.networks[network].final_activations) as model:
        check_plain(model)
        copy = with_values(model, model, full=full)
    for made, own in zip(copy.variables, model.variables, strict=True):
        if id(own) in values:
            made.assign(values[id(own)])
    return copy


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
    ] or sorted(set(foreign_parts(keras.saving.serialize_keras_object(model))))
    if foreign:
        raise UserError(
            f"A plain Keras model holds parts of Keras alone. '{model.name}' also has: {', '.join(foreign)}. "
            "Expected a network without them."
        )


def check_single(model: keras.Model, format_name: str) -> None:
    """Refuse a model that does not make one tensor of one tensor, each with the examples along its first axis.

    Args:
        model: plain.
        format_name: of the format that holds no other.

    Raises:
        UserError: says how many inputs and outputs there are.
    """
    if (len(model.inputs), len(model.outputs)) != (1, 1):
        raise UserError(
            f"'{model.name}' has {len(model.inputs)} inputs and {len(model.outputs)} outputs. Expected one of each for "
            f"format={format_name}, or format=keras."
        )


def _is_of_keras(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "keras"


def foreign_parts(config: Any) -> Iterator[str]:
    """Yield the names of what a serialized model takes from elsewhere: functions, initializers, regularizers."""
    if isinstance(config, Mapping):
        if "module" in config and "class_name" in config and not _is_of_keras(config["module"]):
            name = config["class_name"]
            yield str(config["config"]) if name == "function" else str(name)
        for value in config.values():
            yield from foreign_parts(value)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from foreign_parts(value)
