"""The sign with the gradient of a piecewise quadratic function."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.ops.binary_sign import binary_sign
from trainer.ops.overridden import declare_override


def approx_sign(x: tf.Tensor) -> tf.Tensor:
    """Return exactly +1 where x >= 0 and -1 where x < 0; backward 2 - 2|x| where |x| <= 1, else 0, as at NaN.

    NaN stays NaN. Liu et al. 2018, "Bi-Real Net", arXiv 1808.00278.

    Args:
        x: any shape and float dtype.
    """

    @tf.custom_gradient
    def quantize(latent: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            slope = 2.0 - 2.0 * tf.abs(latent)
            return tf.math.multiply_no_nan(upstream, tf.where(slope > 0.0, slope, tf.zeros_like(slope)))

        return binary_sign(latent), gradient

    x = tf.convert_to_tensor(x)
    quantized = quantize(x)
    declare_override("approx_sign", [x], quantized, _piecewise_quadratic)
    return quantized


def _piecewise_quadratic(x: tf.Tensor) -> tf.Tensor:
    """Return the function whose derivative the gradient is: 2x - x|x| where |x| <= 1, else the sign."""
    limited = tf.clip_by_value(x, -1.0, 1.0)
    return limited * (2.0 - tf.abs(limited))
