"""A Keras model that computes in float32, made of one that was trained in half precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

MIXED = "mixed_"
FULL = "float32"


def is_mixed(model: keras.Model) -> bool:
    """Return whether any layer of a model computes in half precision, with variables in float32.

    Args:
        model: any Keras model.
    """
    return any(layer.dtype_policy.name.startswith(MIXED) for layer in model._flatten_layers())


def in_full_precision(model: keras.Model) -> keras.Model:
    """Return a model of the same layers, names and values that computes in float32 all through.

    Layers keep the policy that they were built with wherever they are loaded: without this, a model that was trained in
    half precision on a GPU would compute so on a CPU, several times slower than in float32, and less exactly.

    Args:
        model: whose layers are all of Keras; one that is not mixed is returned as it is.
    """
    return with_values(model, model, full=True) if is_mixed(model) else model


def with_values(structure: keras.Model, values: keras.Model, *, full: bool = False) -> keras.Model:
    """Return a new model with the layers of one model, and the values of another's variables.

    Args:
        structure: whose layers are all of Keras.
        values: of the same layers, perhaps in another precision.
        full: whether layers of the new model compute in float32 where those of `structure` are mixed.
    """
    config = keras.saving.serialize_keras_object(structure)
    made = keras.saving.deserialize_keras_object(_without_mixed(config) if full else config)
    for variable, given in zip(made.variables, values.variables, strict=True):
        variable.assign(given.value)
    return made


def _without_mixed(config: Any) -> Any:
    """Return the config of a model with float32 in the place of mixed policies."""
    if isinstance(config, Mapping):
        name = config["config"].get("name", "") if config.get("class_name") == "DTypePolicy" else ""
        if name.startswith(MIXED):
            return {**config, "config": {**config["config"], "name": FULL}}
        return {key: _without_mixed(value) for key, value in config.items()}
    return [_without_mixed(value) for value in config] if isinstance(config, list | tuple) else config
