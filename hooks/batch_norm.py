"""Batch norm layers that are called in another way: as one op, or with moving statistics in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from hookline.trainer.graph import layer_paths, select_layers
from hookline.trainer.ops.batch_norm import FUSED_DTYPES, SMALLEST_EPSILON, fused_batch_norm, fused_scale_and_shift
from hookline.trainer.ops.graph_walk import with_outer_graphs

Call: TypeAlias = "Callable[..., tf.Tensor]"


def find_batch_norms(model: keras.Model, patterns: str | Sequence[str]) -> dict[str, keras.layers.BatchNormalization]:
    """Return the batch norm layers that match, by path; "*" may match none."""

    def accept(layer: keras.Layer) -> bool:
        return isinstance(layer, keras.layers.BatchNormalization)

    if patterns == "*":
        return {path: layer for path, layer in layer_paths(model).items() if accept(layer)}
    return select_layers(model, patterns, accept=accept, kind="batch norm layer")


def call_fused(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, *, by_batch: bool) -> tf.Tensor:
    """Return what `BatchNormalization.call` does, computed by the fused kernel; write moving statistics as it does."""
    scale = keras.ops.cast(layer.gamma, "float32") if layer.scale else tf.ones([inputs.shape[-1]])
    offset = keras.ops.cast(layer.beta, "float32") if layer.center else tf.zeros([inputs.shape[-1]])
    moving_mean = keras.ops.cast(layer.moving_mean, "float32")
    moving_variance = keras.ops.cast(layer.moving_variance, "float32")
    if not by_batch:
        scale *= tf.math.rsqrt(moving_variance + layer.epsilon)
        return fused_scale_and_shift(inputs, scale, offset - moving_mean * scale)
    outputs, mean, variance = fused_batch_norm(inputs, scale, offset, epsilon=layer.epsilon)
    layer.moving_mean.assign(moving_mean * layer.momentum + mean * (1.0 - layer.momentum))
    layer.moving_variance.assign(moving_variance * layer.momentum + variance * (1.0 - layer.momentum))
    return outputs


OWN_METHODS = ("call", "_moments")
EVALUATION_FACTOR = 2  # with given statistics, Keras makes fewer passes: the kernel is faster only on larger inputs
WIDE, WIDE_FACTOR = 64, 50  # with more channels, Keras's two ops are as fast until inputs exceed the caches


def has_own_methods(layer: keras.layers.BatchNormalization) -> bool:
    """Return whether a layer is of a subclass that computes something of its own."""
    return any(getattr(type(layer), name) is not getattr(keras.layers.BatchNormalization, name) for name in OWN_METHODS)


def why_layer_stays(layer: keras.layers.BatchNormalization) -> str | None:
    """Return why no call of a layer can be fused, or None."""
    if has_own_methods(layer) or "call" in vars(layer):
        return f"{type(layer).__name__} computes something of its own"
    if layer.renorm or layer.synchronized:
        return "renorm" if layer.renorm else "synchronized"
    return f"epsilon below {SMALLEST_EPSILON}" if layer.epsilon < SMALLEST_EPSILON else None


def why_call_stays(
    layer: keras.layers.BatchNormalization, inputs: Any, mask: Any, *, by_batch: bool, min_entries: int
) -> str | None:
    """Return why one call of a layer is not fused, or None."""
    if not tf.is_tensor(inputs):
        return f"inputs are a {type(inputs).__name__}"
    if mask is not None:
        return "a mask"
    rank = inputs.shape.rank
    if rank is None or rank < 2 or layer.axis not in (-1, rank - 1):
        return f"axis {layer.axis} is not the last"
    if inputs.dtype.name not in FUSED_DTYPES or inputs.dtype != layer.compute_dtype:
        return f"{inputs.dtype.name} inputs, computed in {layer.compute_dtype}"
    graph = tf.compat.v1.get_default_graph()
    if getattr(graph, "_gradient_override_map", None):
        return "gradients of op types are overridden"
    if _compiled_by_xla(graph):
        return "XLA, which fuses the ops of Keras itself"
    if not inputs.shape.is_fully_defined():
        return "its batch has no fixed size"
    factor = 1 if by_batch else EVALUATION_FACTOR if inputs.shape[-1] <= WIDE else WIDE_FACTOR
    entries, needed = math.prod(inputs.shape), factor * min_entries
    return f"{entries:,} entries, below {needed:,}" if entries < needed else None


def _compiled_by_xla(graph: tf.Graph) -> bool:
    """Return whether a graph is traced for a `tf.function(jit_compile=True)`, or inside of one."""
    for each in with_outer_graphs(graph):
        context = each._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
    return False


def calls_frozen(layers: Iterable[keras.Layer], frozen: tf.Tensor) -> list[tuple[keras.Layer, Call]]:
    """Return calls that do what the layers do now, but where `frozen` is True use and keep their moving statistics."""
    return [(layer, partial(_call_frozen, layer, layer.call, frozen)) for layer in layers]


def _call_frozen(
    layer: keras.Layer, call: Call, frozen: tf.Tensor, inputs: Any, training: bool | None = None, mask: Any = None
) -> tf.Tensor:
    if not (training and layer.trainable):
        return call(inputs, training=training, mask=mask)
    values = [(variable, tf.convert_to_tensor(variable.value)) for variable in layer.variables]
    moving = layer.non_trainable_variables

    def run(by_batch: bool) -> list[tf.Tensor]:
        with keras.StatelessScope(values) as scope:  # what a branch assigns must leave it as a result
            outputs = call(inputs, training=by_batch, mask=mask)
            return [outputs, *(tf.identity(scope.get_current_value(each)) for each in moving)]

    outputs, *after = tf.cond(frozen, lambda: run(False), lambda: run(True))
    for variable, value in zip(moving, after, strict=True):
        variable.assign(value)
    return outputs
