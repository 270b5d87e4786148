"""Batch norm layers that go over to their moving statistics in the middle of a run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.normalization.fused import Call


def calls_frozen(layers: Iterable[keras.Layer], frozen: tf.Tensor) -> list[tuple[keras.Layer, Call]]:
    """Return calls that do what the layers do now, but in training with the moving statistics where these are frozen.

    As in a layer of Keras that is not trainable, the statistics stay as they are; gamma and beta are trained.

    Args:
        layers: batch norm layers.
        frozen: bool scalar.
    """
    return [(layer, partial(_call, layer, layer.call, frozen)) for layer in layers]


def _call(
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
