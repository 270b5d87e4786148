"""Batch norm layers called with another function for a while, and the function: their own, on the fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import keras
import tensorflow as tf

from trainer.ops.fused_batch_norm import fused_batch_norm, fused_scale_and_shift

Call: TypeAlias = "Callable[..., tf.Tensor]"


@contextmanager
def calls_replaced(calls: Sequence[tuple[keras.Layer, Call]]) -> Iterator[None]:
    """Have layers called with other functions inside the block; afterwards they are as they were, whatever happens.

    Keras calls `layer.call` in `Layer.__call__`, in every kind of model. An attribute of the layer itself hides the
    method of its class. It is set past Keras, which would look for variables in it.

    Args:
        calls: layers with the functions, called as (inputs, training=..., mask=...).
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

    Args:
        layer: built.
        inputs: [batch, ..., channels] in the dtype in which the layer computes.
        by_batch: whether to normalize by the batch's own statistics and to let the moving ones follow them; otherwise
            the moving ones normalize, and stay.

    Returns:
        In shape and dtype of the inputs.
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
