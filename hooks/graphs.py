"""Rebuild functional models with other layer calls, and replace the `call` of layers temporarily."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from hookline.hooks.options import first_of
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph, select_layers, walk

Call: TypeAlias = "Callable[..., tf.Tensor]"


def call_anew(model: keras.Model, touches: Callable[[Any], bool], call: Callable[..., Any]) -> keras.Model:
    """Rebuild a functional model with `call(layer, *args, **kwargs)` for each layer for which `touches` is true.

    Layers and variables are shared. Inner models with such layers are rebuilt too; a model without any, or without a
    known graph, is returned unchanged.
    """
    if not is_graph(model) or not any(map(touches, model._flatten_layers())):
        return model

    def clone(layer: Any) -> Any:
        return call_anew(layer, touches, call)

    def has_mask(output: Any) -> bool:
        return getattr(output, "_keras_mask", None) is not None

    def call_any(layer: Any, *args: Any, **kwargs: Any) -> Any:
        return call(layer, *args, **kwargs) if touches(layer) else layer(*args, **kwargs)

    before = as_functional(model)
    made = keras.models.clone_model(before, clone_function=clone, call_function=call_any)
    if any(has_mask(old) and not has_mask(new) for old, new in zip(before.outputs, made.outputs, strict=True)):
        lost = "The exported model has no mask on its outputs: the operations that replace a hook's layers drop it"
        warnings.warn(f"{lost}. Keras metrics will include padding.", stacklevel=2)
    return made


@contextmanager
def calls_replaced(calls: Iterable[tuple[keras.Layer, Callable[..., Any]]]) -> Iterator[None]:
    """Replace the `call` of layers inside the block, without Keras's attribute tracking."""
    calls = list(calls)
    before = [vars(layer).get("call") for layer, _ in calls]
    try:
        for layer, call in calls:
            vars(layer)["call"] = call
        yield
    finally:
        for (layer, _), call in zip(calls, before, strict=True):
            vars(layer).pop("call", None)
            if call is not None:
                vars(layer)["call"] = call


def calls_frozen(layers: Iterable[keras.Layer], frozen: tf.Tensor) -> list[tuple[keras.Layer, Call]]:
    """Return the layers' current calls, modified to use and keep the moving statistics when `frozen` is True."""
    return [(layer, partial(_call_frozen, layer, layer.call, frozen)) for layer in layers]


def _call_frozen(
    layer: keras.Layer, call: Call, frozen: tf.Tensor, inputs: Any, training: bool | None = None, mask: Any = None
) -> tf.Tensor:
    if not (training and layer.trainable):
        return call(inputs, training=training, mask=mask)
    values = [(variable, tf.convert_to_tensor(variable.value)) for variable in layer.variables]
    moving = layer.non_trainable_variables

    def run(by_batch: bool) -> list[tf.Tensor]:
        with keras.StatelessScope(values) as scope:  # a branch must return what it assigns
            outputs = call(inputs, training=by_batch, mask=mask)
            return [outputs, *(tf.identity(scope.get_current_value(each)) for each in moving)]

    outputs, *after = tf.cond(frozen, lambda: run(False), lambda: run(True))
    for variable, value in zip(moving, after, strict=True):
        variable.assign(value)
    return outputs


def write_out(model: keras.Model, kinds: type | tuple[type, ...]) -> keras.Model:
    """Return the model for inference, with `written_out` as the call of a hook's layers; variables are shared."""

    def call(layer: Any, inputs: Any) -> Any:
        return layer.written_out(inputs)

    return call_anew(model, lambda layer: isinstance(layer, kinds), call)


def select_layer(model: keras.Model, pattern: str) -> keras.Layer:
    """Return the one layer of a model that matches."""
    found = select_layers(model, pattern)
    if len(found) != 1:
        raise UserError(f"The pattern '{pattern}' matches {first_of(list(found))}. Expected one layer.")
    return next(iter(found.values()))


def with_inner_layers(layers: Mapping[str, keras.Layer]) -> set[int]:
    """Return the identities of layers and of all layers inside them."""
    return {id(inner) for layer in layers.values() for inner in layer._flatten_layers()}


def with_upstream_layers(model: keras.Model, layers: Mapping[str, keras.Layer]) -> set[int]:
    """Return the identities of layers, of all layers inside them, and of all layers from which data reaches them."""
    if not is_graph(model):
        raise UserError("A subclassed model has no graph that shows what comes before a layer. Expected stop=weights.")
    wanted = with_inner_layers(layers)
    found: set[int] = set()

    def visit(operation: Any, facts: list[frozenset[int]], constants: list[Any]) -> frozenset[int]:
        inside = with_inner_layers({"": operation}) if isinstance(operation, keras.Layer) else ()
        passed = frozenset[int]().union(*facts, inside)
        if id(operation) in wanted:
            found.update(passed)
        return passed

    walk(model, frozenset[int](), visit)
    called = {path: layer for path, layer in layers.items() if not isinstance(layer, keras.layers.InputLayer)}
    hidden = [path for path, layer in called.items() if not with_inner_layers({path: layer}) & found]
    if hidden:
        raise UserError(
            f"What comes before layer '{hidden[0]}' is not known: it is inside a layer that is not a functional model. "
            "Expected that outer layer, or stop=weights."
        )
    return found | wanted
