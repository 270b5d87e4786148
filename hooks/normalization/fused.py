"""Batch norm layers called as one op."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from hookline.trainer.ops.batch_norm import FUSED_DTYPES, SMALLEST_EPSILON, fused_batch_norm, fused_scale_and_shift
from hookline.trainer.ops.graph_walk import with_outer_graphs

Call: TypeAlias = "Callable[..., tf.Tensor]"


@contextmanager
def calls_replaced(calls: Sequence[tuple[keras.Layer, Call]]) -> Iterator[None]:
    """Replace the `call` of layers inside the block; afterwards they are as they were, whatever happens.

    Keras calls `layer.call` in `Layer.__call__`, in every kind of model. An attribute of the layer itself hides the
    method of its class. It is set past Keras, which would look for variables in it.
    """
    before = [vars(layer).get("call") for layer, _ in calls]
    try:
        for layer, call in calls:
            vars(layer)["call"] = call
        yield
    finally:
        for (layer, _), call in zip(calls, before, strict=True):
            if call is None:
                vars(layer).pop("call", None)
            else:
                vars(layer)["call"] = call


def call_fused(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, *, by_batch: bool) -> tf.Tensor:
    """Do what `BatchNormalization.call` does, on the fused kernel.

    Inside `stateless_call` the values of the layer's variables come from there, and the new moving statistics go there.
    """
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


OWN_METHODS = ("call", "_moments")  # of a subclass that changes what the layer computes
EVALUATION_FACTOR = 2  # with given statistics, Keras makes fewer passes: the kernel is faster only on larger inputs
WIDE, WIDE_FACTOR = 64, 50  # with more channels, Keras's two ops are as fast until inputs exceed the caches


def has_own_methods(layer: keras.layers.BatchNormalization) -> bool:
    """Return whether the class of a layer computes something of its own."""
    return any(getattr(type(layer), name) is not getattr(keras.layers.BatchNormalization, name) for name in OWN_METHODS)


def why_layer_stays(layer: keras.layers.BatchNormalization) -> str | None:
    """Return why no call of a layer can be fused, or None."""
    if has_own_methods(layer) or "call" in vars(layer):
        return f"{type(layer).__name__} computes something of its own"
    if layer.renorm:
        return "renorm"
    if layer.synchronized:
        return "synchronized"
    if layer.epsilon < SMALLEST_EPSILON:
        return f"epsilon below {SMALLEST_EPSILON}"
    return None


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
