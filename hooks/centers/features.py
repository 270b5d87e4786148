"""Where the features of a network are."""

from __future__ import annotations

from typing import Any

import keras

from trainer.errors import UserError
from trainer.graph import is_graph, layer_input, layer_output
from trainer.select import select_layers


def find_features(model: keras.Model, pattern: str | None) -> Any:
    """Return the tensor [batch, d] of a model's own graph that holds the features.

    Args:
        model: functional or Sequential.
        pattern: on the path or name of the layer whose output they are; None for the input of the last dense layer.

    Raises:
        UserError: not one such layer, no graph, another rank, or no weight on the way to them that could learn.
    """
    if not is_graph(model):
        raise UserError(
            f"The model '{model.name}' is a {type(model).__name__}, whose inner tensors are not known. "
            "Expected a functional or Sequential model."
        )
    if pattern is None:
        layer = _last_dense_layer(model)
        features, where = layer_input(model, layer), f"The input of the layer '{layer.name}'"
    else:
        layer = _only_layer(model, pattern)
        features, where = layer_output(model, layer), f"The output of the layer '{layer.name}'"
    if len(features.shape) != 2 or features.shape[-1] is None:
        raise UserError(
            f"{where} has the shape {tuple(features.shape)}. Expected features [batch, d]: set layer to one after the "
            "flattening or the pooling."
        )
    if not _learns(features):
        raise UserError(f"{where} depends on no trainable weight. Expected features that can learn: set layer.")
    return features


def _last_dense_layer(model: keras.Model) -> keras.Layer:
    found = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    if not found:
        raise UserError(
            f"The model '{model.name}' has no dense layer of its own whose input could be the features. Expected layer "
            f"to name the layer whose output they are, one of: {', '.join(layer.name for layer in model.layers)}."
        )
    return found[-1]  # a functional model lists its layers in the order of its graph


def _only_layer(model: keras.Model, pattern: str) -> keras.Layer:
    found = select_layers(model, pattern)
    if len(found) != 1:
        raise UserError(f"The pattern '{pattern}' matches {', '.join(found)}. Expected layer to match one of them.")
    return next(iter(found.values()))


def _learns(features: Any) -> bool:
    """Return whether a layer with trainable weights lies on the way from the model's input to a tensor."""
    waiting, seen = [features], set()
    while waiting:
        operation, index, _ = waiting.pop()._keras_history
        if getattr(operation, "trainable_variables", None):
            return True
        if (id(operation), index) not in seen:
            seen.add((id(operation), index))
            waiting += operation._inbound_nodes[index].input_tensors
    return False
