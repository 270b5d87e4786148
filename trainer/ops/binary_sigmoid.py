"""The step function 0/1 with the gradient of the hard sigmoid."""

from __future__ import annotations

import tensorflow as tf

from trainer.ops.binary_sign import binary_sign
from trainer.ops.hard_sigmoid import hard_sigmoid
from trainer.ops.straight_through import straight_through


def binary_sigmoid(x: tf.Tensor) -> tf.Tensor:
    """Return 1 where x >= 0, else 0; backward the gradient of hard_sigmoid, 1{|x| <= 1} / 2.

    t = hard_sigmoid(x); y = t + stop_gradient(f(x) - t). Exact in float32, bfloat16 and float16: f = 1 only where
    t >= 1/2, so f - t is exact (Sterbenz), and -t + t = 0. The usual f = round(t), half to even, gives 0 at x = 0
    and at x = 1e-9, which t absorbs; here f is taken from x itself. NaN stays NaN.

    Courbariaux et al. 2016, arXiv 1602.02830.

    Args:
        x: any shape and float dtype.
    """
    x = tf.convert_to_tensor(x)
    return straight_through(0.5 * (binary_sign(x) + 1.0), hard_sigmoid(x))
