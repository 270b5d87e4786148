"""Which calls of batch norm layers the fused kernel takes over, and why not the others."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from trainer.ops.fused_batch_norm import FUSED_DTYPES, SMALLEST_EPSILON
from trainer.step.scope import with_outer_graphs

OWN_METHODS = ("call", "_moments")  # of a subclass that changes what the layer computes
EVALUATION_FACTOR = 2  # by statistics that are given, Keras makes fewer passes: the kernel gains from larger inputs on
WIDE, WIDE_FACTOR = (
    64,
    50,
)  # with more channels than this the two ops of Keras are as fast until inputs leave the caches


def why_layer_stays(layer: keras.layers.BatchNormalization) -> str | None:
    """Return why no call of a layer can be fused, or None.

    Args:
        layer: built.
    """
    if any(
        getattr(type(layer), name) is not getattr(keras.layers.BatchNormalization, name) for name in OWN_METHODS
    ) or "call" in vars(layer):
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
    """Return why one call of a layer is not fused, or None.

    Args:
        layer: for which `why_layer_stays` returned None.
        inputs: of the call.
        mask: of the call.
        by_batch: whether the batch's own statistics normalize it, as in training.
        min_entries: how many entries the inputs have at least, by the batch's own statistics.
    """
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
