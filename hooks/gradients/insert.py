"""Backward passes put on the layers of a functional model, and taken off again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from hookline.hooks.rebuild import call_anew
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph
from hookline.trainer.ops.backward import Backward
from hookline.trainer.select import select_layers

if TYPE_CHECKING:
    from hookline.hooks.gradients.layers import PassThrough


def choose_layers(model: keras.Model, patterns: str | Sequence[str]) -> dict[str, keras.Layer]:
    """Return the layers that match, by path: of all that a graph calls on float tensors, and that hold no graph."""
    if not is_graph(model):
        raise UserError(
            f"The model '{model.name}' is a {type(model).__name__}, whose graph is not known: no gradient of a layer "
            "can be overridden. Expected a functional or Sequential model, or op_type."
        )
    offered = _called_layers(model)
    return select_layers(model, patterns, accept=lambda layer: id(layer) in offered)


def _called_layers(model: keras.Model) -> set[int]:
    """Return the identities of the layers that a model's graph, or one inside it, calls on float tensors."""
    found: set[int] = set()
    for nodes in as_functional(model)._nodes_by_depth.values():
        for node in nodes:
            if is_graph(node.operation):
                found |= _called_layers(node.operation)
            elif (
                not node.is_input
                and isinstance(node.operation, keras.Layer)
                and any(map(_is_float, node.input_tensors))
            ):
                found.add(id(node.operation))
    return found


def _is_float(tensor: Any) -> bool:
    return keras.backend.is_float_dtype(tensor.dtype)


def put_on(model: keras.Model, layers: Mapping[str, keras.Layer], backward: Backward, hook: str) -> keras.Model:
    """Return the model with a backward pass on each of the layers: the same layers, the same variables.

    Nested models that hold such layers are rebuilt too.
    """
    paths = {id(layer): path for path, layer in layers.items()}
    made: dict[str, PassThrough] = {}  # a layer that is called several times has one, which is called as often

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if id(layer) not in paths:
            return layer(*args, **kwargs)
        name = f"{hook}_{paths[id(layer)].replace('/', '_')}"

        def make(kind: type[PassThrough], suffix: str, outputs: int, **options: Any) -> PassThrough:
            key = name + suffix
            if key not in made:
                place: dict[str, Any] = {"outputs": outputs, "hook": hook, "belongs_to": id(layer)}
                made[key] = kind(name=key, dtype=layer.dtype_policy, **place, **options)
            return made[key]

        return _call_with(layer, args, kwargs, backward, make)

    return call_anew(model, lambda layer: id(layer) in paths, call)


def _call_with(layer: keras.Layer, args: Any, kwargs: Any, backward: Backward, make: Callable[..., Any]) -> Any:
    """Return a layer's outputs for its arguments, with a backward pass on it."""
    from hookline.hooks.gradients.layers import ModifyGradients, ReplaceGradients, StopGradients  # classes of Keras

    given = [each for each in keras.tree.flatten((args, kwargs)) if isinstance(each, keras.KerasTensor)]
    floats = [each for each in given if _is_float(each)]
    if backward.modifies:
        before = make(ModifyGradients, "", len(floats), backward=backward)
    else:
        before = make(StopGradients, "_stop", len(floats))
    passed = {id(old): new for old, new in zip(floats, before(floats), strict=True)}
    args, kwargs = keras.tree.map_structure(lambda each: passed.get(id(each), each), (args, kwargs))
    outputs = layer(*args, **kwargs)
    if backward.modifies:
        return outputs
    flat = keras.tree.flatten(outputs)
    behind = make(ReplaceGradients, "", len(flat), backward=backward)
    return keras.tree.pack_sequence_as(outputs, behind([*flat, *floats]))


def take_off(model: keras.Model, hook: str) -> keras.Model:
    """Return the model without what `put_on` put in: the same layers, the same variables."""
    from hookline.hooks.gradients.layers import PassThrough  # a class of Keras: not for a look at options

    def is_own(layer: Any) -> bool:
        return isinstance(layer, PassThrough) and layer.hook == hook

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if is_own(layer):
            (inputs,) = (*args, *kwargs.values())
            return list(inputs)[: layer.outputs]
        return layer(*args, **kwargs)

    return call_anew(model, is_own, call)
