"""The sign with the straight-through estimator."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.ops.binary_sign import binary_sign
from trainer.ops.overridden import declare_override
from trainer.ops.pass_within import pass_within


def ste_sign(x: tf.Tensor, *, clip_value: float = 1.0) -> tf.Tensor:
    """Return exactly +1 where x >= 0 and -1 where x < 0; backward 1{|x| <= clip_value}.

    NaN stays NaN. Courbariaux et al. 2016, arXiv 1602.02830, equation 4.

    Args:
        x: any shape and float dtype.
        clip_value: above 0; the gradient is cancelled where |x| exceeds it. Infinity cancels none.
    """

    @tf.custom_gradient
    def quantize(latent: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return pass_within(upstream, latent, clip_value)

        return binary_sign(latent), gradient

    x = tf.convert_to_tensor(x)
    quantized = quantize(x)
    declare_override("ste_sign", [x], quantized, lambda latent: tf.clip_by_value(latent, -clip_value, clip_value))
    return quantized
