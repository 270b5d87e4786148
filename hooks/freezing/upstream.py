"""Which layers come before others: found by running sets of layers instead of tensors through a model's graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph


@dataclass(frozen=True)
class Origin:
    """Say where a tensor comes from."""

    layers: frozenset[int] = frozenset()  # identities of the layers that it went through


def with_inner_layers(layers: Mapping[str, keras.Layer]) -> set[int]:
    """Return the identities of layers and of all layers inside them."""
    return {id(inner) for layer in layers.values() for inner in layer._flatten_layers()}


def with_upstream_layers(model: keras.Model, layers: Mapping[str, keras.Layer]) -> set[int]:
    """Return the identities of layers, of all layers inside them, and of all layers from which data reaches them.

    A layer that also feeds the output along another path, past the given ones, is among them.
    """
    if not is_graph(model):
        raise UserError(
            "A subclassed model has no graph that shows what comes before a layer. Expected stop=weights with a "
            "pattern for every layer to freeze, or a functional model."
        )
    wanted = {id(layer) for layer in layers.values()}
    found: set[int] = set()

    def interpret(operation: Any, *args: Any, **kwargs: Any) -> Any:
        given = [each for each in keras.tree.flatten((args, kwargs)) if isinstance(each, Origin)]
        before = frozenset[int]().union(*(each.layers for each in given))
        inside = _layers_inside(operation)
        if id(operation) in wanted:
            found.update(before | inside)
        if is_graph(operation):
            return run(operation, given)
        return [Origin(before | inside)] * len(keras.tree.flatten(operation.output))

    def run(graph: keras.Model, inputs: list[Origin]) -> Any:
        return as_functional(graph)._run_through_graph(inputs, call_fn=interpret)

    run(model, [Origin() for _ in model.inputs])
    found.update(id(layer) for layer in layers.values() if isinstance(layer, keras.layers.InputLayer))  # never called
    hidden = [path for path, layer in layers.items() if id(layer) not in found]
    if hidden:
        raise UserError(
            f"What comes before layer '{hidden[0]}' is not known: it is inside a layer that is not a functional model. "
            "Expected the path of that outer layer, or stop=weights."
        )
    return found


def _layers_inside(operation: Any) -> frozenset[int]:
    """Return a layer and the layers inside it; none for an operation that is not a layer."""
    if not isinstance(operation, keras.Layer):
        return frozenset()
    return frozenset(id(layer) for layer in operation._flatten_layers())
