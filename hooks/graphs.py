"""Rebuild functional models with other layer calls, and replace the `call` of layers temporarily."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from hookline.hooks.options import first_of
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph, is_of, select_layers, walk

Call: TypeAlias = "Callable[..., tf.Tensor]"


def call_anew(model: keras.Model, touches: Callable[[Any], bool], call: Callable[..., Any]) -> keras.Model:
    """Rebuild a functional model with `call(layer, *args, **kwargs)` for each layer for which `touches` is true.

    Layers and variables are shared. Inner models with such layers are rebuilt too; a model without any, or without a
    known graph, is returned unchanged.
    """
    if not is_graph(model) or not any(map(touches, model._flatten_layers())):
        return model
    cut: list[Any] = []  # outputs of operations, through which Keras passes no mask

    def clone(layer: Any) -> Any:
        return call_anew(layer, touches, call)

    def call_any(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not touches(layer):
            if is_graph(layer) and any(map(touches, layer._flatten_layers())):
                check_unmasked(layer, args)
            made = layer(*args, **kwargs, **(_masks(layer, args, kwargs) if cut else {}))
            if is_of(layer, ("MultiHeadAttention",)):
                for each in filter(_is_masked, [*args, *kwargs.values()]):
                    each._keras_mask = None  # Keras removes the masks of the inputs when the layer runs
            return made
        made = call(layer, *args, **kwargs)
        if args and _is_masked(args[0]) and not isinstance(made._keras_history.operation, keras.Layer):
            made._keras_mask = args[0]._keras_mask  # for the layers that follow: Keras records it as their argument
            cut.append(made)
        return made

    before = as_functional(model)
    made = keras.models.clone_model(before, clone_function=clone, call_function=call_any)
    if cut and any(map(_is_masked, before.outputs)):
        lost = "The exported model has no mask on its outputs: the operations that replace a hook's layers drop it"
        warnings.warn(f"{lost}. Keras metrics will include padding.", stacklevel=2)
    return made


def check_unmasked(model: keras.Model, inputs: Iterable[Any]) -> None:
    """Refuse an inner model, about to be rebuilt, whose inputs have a mask: its layers would not get it."""
    if any(map(_is_masked, keras.tree.flatten(list(inputs)))):
        raise UserError(
            f"The inner model '{model.name}' gets a Keras mask, which the operations of a hook would not pass on. "
            "Expected its layers in the outer model, or an attention_mask instead of mask_zero=True."
        )


def _is_masked(tensor: Any) -> bool:
    return getattr(tensor, "_keras_mask", None) is not None


def _masks(layer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return masks as arguments for a layer of several inputs, such as attention: Keras does not record those."""
    parameters = inspect.signature(layer.call).parameters
    given = {**dict(zip(parameters, args, strict=False)), **kwargs}
    found = {f"{name}_mask": value._keras_mask for name, value in given.items() if _is_masked(value)}
    for several in (each for each in args if isinstance(each, list | tuple) and any(map(_is_masked, each))):
        found["mask"] = [getattr(each, "_keras_mask", None) for each in several]
    masks = {name: mask for name, mask in found.items() if name in parameters and given.get(name) is None}
    if "query_mask" in masks and "attention_mask" in parameters:  # Keras ignores the argument `query_mask`
        attended = keras.ops.expand_dims(masks.pop("query_mask"), 2)
        for own in (masks["value_mask"][:, None] if "value_mask" in masks else None, given.get("attention_mask")):
            attended = attended if own is None else keras.ops.logical_and(attended, own)
        masks["attention_mask"] = attended
    return masks


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
