"""A network as a plain Keras model: the weights that evaluation uses, and nothing that only this project knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from trainer.errors import UserError
from trainer.export.assigned import assigned
from trainer.export.card import card_of
from trainer.export.full_precision import is_mixed, with_values
from trainer.final_activation import put_back, with_final
from trainer.run.finished import FinishedRun
from trainer.run.shipped import shipped_weights
from trainer.step.returned import checked
from trainer.step.stage import in_stage
from trainer.step.trainer import Trainer


@contextmanager
def plain_model(run: FinishedRun, network: str, *, full: bool = True) -> Iterator[keras.Model]:
    """Yield the finished model of a network, as `finished_model` has it; the run is afterwards what it was.

    Args:
        run: restored.
        network: name of the network.
        full: whether it computes in float32 where the run computed in half precision.
    """
    owner = run.parts.trainer.networks[network]
    before = {name: variable.numpy() for name, variable in owner.weights.items()}
    stripped = strip_model(run.parts.trainer, network)
    with assigned(owner, before), put_back(stripped, owner.final_activations) as model:
        yield _with_shipped(run, network, model, full=full)


def finished_model(run: FinishedRun, network: str) -> keras.Model:
    """Return the model of a network with the weights that evaluation uses, without hooks, in float32.

    It ends with the activation that the user's model has. Of parts of Keras it is a deep copy, which shares nothing
    with the run. A model that has others, such as a class of the user's, may say too little of itself to be made anew:
    it is the network's own, whose weights and final activation are changed.

    Args:
        run: restored.
        network: name of the network.

    Raises:
        UserError: it computes in half precision, and cannot be made anew in float32.
    """
    owner = run.parts.trainer.networks[network]
    model = with_final(strip_model(run.parts.trainer, network), owner.final_activations)
    return _with_shipped(run, network, model, full=True)


def _with_shipped(run: FinishedRun, network: str, model: keras.Model, *, full: bool) -> keras.Model:
    trainer = run.parts.trainer
    shipped = shipped_weights(trainer, run.step)[network]
    variables = trainer.networks[network].variables
    values = {id(variables[name]): np.array(value) for name, value in shipped.items()}
    made = model
    if not foreign_names(model):
        made = with_values(model, model, full=full)
    elif full and is_mixed(model):
        made = _own_in_float32(model)
    for variable, own in zip(made.weights, model.weights, strict=True):
        if id(own) in values:
            variable.assign(values[id(own)])
    return made


def _own_in_float32(model: keras.Model) -> keras.Model:
    try:
        return with_values(model, model, full=True)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"'{model.name}' was trained in half precision, and Keras cannot make it anew in float32: {reason} "
            "Expected classes whose get_config has every argument of theirs, or a run with trainer.precision=float32."
        ) from error


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
                model = checked(hook, "strip_model", hook.strip_model(model))
    return model


def check_plain(model: keras.Model, format_name: str) -> None:
    """Refuse a model that has parts that Keras alone does not know.

    Args:
        model: any Keras model.
        format_name: of the format that takes no other.

    Raises:
        UserError: names the layers, functions or other parts that are not of Keras.
    """
    if foreign := foreign_names(model):
        raise UserError(
            f"format={format_name} holds parts of Keras alone. '{model.name}' also has: {', '.join(foreign)}. "
            "Expected a network without them, or format=saved_model."
        )


def foreign_names(model: keras.Model) -> list[str]:
    """Return the layers of a model whose class is not of Keras; where there are none, its other parts that are not.

    Args:
        model: any Keras model.
    """
    layers = [f"{layer.name} ({type(layer).__name__})" for layer in model._flatten_layers() if is_foreign(type(layer))]
    return layers or sorted(set(foreign_parts(keras.saving.serialize_keras_object(model))))


def single_model(run: FinishedRun, network: str, model: keras.Model, format_name: str) -> keras.Model:
    """Return a model as a graph from one tensor to one tensor, each with the examples along its first axis.

    Args:
        run: restored.
        network: name of the network.
        model: finished. A subclassed one becomes the only layer of a graph.
        format_name: of the format that holds no other.

    Raises:
        UserError: says how many inputs and outputs there are.
    """
    if not hasattr(model, "inputs"):
        inputs = keras.Input(card_of(run, network).shape)
        model = keras.Model(inputs, model(inputs), name=model.name)
    if (len(model.inputs), len(model.outputs)) != (1, 1):
        raise UserError(
            f"'{model.name}' has {len(model.inputs)} inputs and {len(model.outputs)} outputs. Expected one of each for "
            f"format={format_name}, or format=keras."
        )
    return model


def is_foreign(part: type) -> bool:
    """Return whether a class is not of Keras.

    Args:
        part: of a layer.
    """
    return not _is_of_keras(part.__module__)


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
