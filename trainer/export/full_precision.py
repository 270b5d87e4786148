"""A Keras model that computes in float32, made of one that was trained in half precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras

MIXED = "mixed_"
FULL = "float32"


def is_mixed(model: keras.Model) -> bool:
    """Return whether any layer of a model computes in half precision, with variables in float32.

    Args:
        model: any Keras model.
    """
    return bool(_mixed_dtypes(model))


def with_values(structure: keras.Model, values: keras.Model, *, full: bool = False) -> keras.Model:
    """Return a new model with the layers of one model, and the values of another's variables.

    Layers keep the policy that they were built with wherever they are loaded. So a model that was trained in half
    precision on a GPU computes in that on a CPU too, several times slower than in float32, and less exactly: `full`.

    Args:
        structure: whose layers can be made anew of their config.
        values: of the same layers, perhaps in another precision.
        full: whether the new model computes in float32 where layers of `structure` are mixed, and what lies between
            them with it.
    """
    config = keras.saving.serialize_keras_object(structure)
    if full and (mixed := _mixed_dtypes(structure)):
        config = _in_full(config, mixed)
    classes = {type(layer).__name__: type(layer) for layer in structure._flatten_layers()}  # not all are of Keras
    with keras.saving.custom_object_scope(classes):
        made = keras.saving.deserialize_keras_object(config)
    assign_weights(made, values)
    return made


def assign_weights(model: keras.Model, values: keras.Model) -> None:
    """Give a model's weights and moving statistics, and the seed states that both have, another model's values.

    Which layers hold a seed state is no part of a model's config: a dropout whose rate is 0 when it is made has none.

    Args:
        model: of the layers of the other, in their order.
        values: perhaps in another precision.
    """
    for variable, given in zip(model.weights, values.weights, strict=True):
        variable.assign(given.value)
    seeds = dict(_seeds(values))
    for path, state in _seeds(model):
        if path in seeds:
            state.assign(seeds[path].value)


def _seeds(model: keras.Model) -> Iterator[tuple[tuple[str, int], keras.Variable]]:
    """Yield the seed states of a model, by the layer that draws, and which of its generators it is."""
    for layer in model._flatten_layers():
        for number, generator in enumerate(layer._seed_generators):
            yield (layer.path or layer.name, number), generator.state


def _mixed_dtypes(model: keras.Model) -> set[str]:
    """Return in what mixed layers compute, such as {"bfloat16"}."""
    policies = {layer.dtype_policy.name for layer in model._flatten_layers()}
    return {name.removeprefix(MIXED) for name in policies if name.startswith(MIXED)}


def _in_full(config: Any, mixed: set[str]) -> Any:
    """Return the config of a model with float32 in the place of mixed policies, and of their dtypes between layers."""
    if isinstance(config, Mapping):
        if config.get("class_name") == "DTypePolicy":
            name = config["config"].get("name", "")
            return {**config, "config": {**config["config"], "name": FULL}} if name.startswith(MIXED) else config
        return {
            key: FULL if key == "dtype" and isinstance(value, str) and value in mixed else _in_full(value, mixed)
            for key, value in config.items()
        }
    return [_in_full(value, mixed) for value in config] if isinstance(config, list | tuple) else config
