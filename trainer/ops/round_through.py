"""Rounding with the gradient of the identity."""

from __future__ import annotations

import tensorflow as tf

from trainer.ops.straight_through import straight_through


def round_through(x: tf.Tensor) -> tf.Tensor:
    """Round to the nearest integer, half to even; backward dy/dx = 1.

    x + stop_gradient(round(x) - x). Straight-through estimator: Bengio et al. 2013, arXiv 1308.3432.

    Args:
        x: any shape and float dtype.
    """
    x = tf.convert_to_tensor(x)
    return straight_through(tf.round(x), x)
