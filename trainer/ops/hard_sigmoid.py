"""The piecewise linear sigmoid of binary networks."""

from __future__ import annotations

import tensorflow as tf


def hard_sigmoid(x: tf.Tensor) -> tf.Tensor:
    """Return clip((x + 1) / 2, 0, 1).

    The gradient is 1/2 where |x| <= 1, both ends included, and 0 elsewhere. Note that `keras.ops.hard_sigmoid` is
    another function: clip(x / 6 + 1/2, 0, 1). Courbariaux et al. 2016, arXiv 1602.02830, equation 3.

    Args:
        x: any shape and float dtype.
    """
    # Clipping first keeps the mask exact: one ulp above 1, x + 1 would round to 2.
    return 0.5 * (tf.clip_by_value(tf.convert_to_tensor(x), -1.0, 1.0) + 1.0)
