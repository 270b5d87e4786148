"""The sign with the gradient of the SignSwish function."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.ops.binary_sign import binary_sign
from trainer.ops.overridden import declare_override


def swish_sign(x: tf.Tensor, *, beta: float = 5.0) -> tf.Tensor:
    """Return exactly +1 where x >= 0 and -1 where x < 0; backward the derivative of SignSwish.

    beta (2 - beta x tanh(beta x / 2)) / (1 + cosh(beta x)): beta at x = 0, slightly negative for large |x|, never cut.
    NaN stays NaN. Darabi et al. 2018, "BNN+", arXiv 1812.11800.

    Args:
        x: any shape and float dtype.
        beta: above 0; how steep the surrogate is.
    """

    @tf.custom_gradient
    def quantize(latent: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # Beyond |beta x| = 30 the slope is below 1e-10; without the clip, cosh overflows and infinity gives NaN.
            scaled = tf.clip_by_value(beta * tf.cast(latent, tf.float32), -30.0, 30.0)
            slope = beta * (2.0 - scaled * tf.tanh(0.5 * scaled)) / (1.0 + tf.cosh(scaled))
            slope = tf.where(tf.math.is_nan(scaled), tf.zeros_like(slope), slope)
            return tf.cast(slope, upstream.dtype) * upstream

        return binary_sign(latent), gradient

    def sign_swish(latent: tf.Tensor) -> tf.Tensor:
        scaled = beta * tf.cast(latent, tf.float32)
        share = tf.sigmoid(scaled)
        return tf.cast(2.0 * share * (1.0 + scaled * (1.0 - share)) - 1.0, latent.dtype)

    x = tf.convert_to_tensor(x)
    quantized = quantize(x)
    declare_override("swish_sign", [x], quantized, sign_swish)
    return quantized
