"""Three values with the straight-through estimator."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.ops.overridden import declare_override
from trainer.ops.pass_within import pass_within


def ste_tern(
    x: tf.Tensor, *, threshold: float = 0.05, ternary_weight_networks: bool = False, clip_value: float = 1.0
) -> tf.Tensor:
    """Return exactly +1 where x > d, -1 where x < -d, else 0; backward 1{|x| <= clip_value}.

    d is `threshold`, or 0.7 mean|x| over the whole tensor (Li et al. 2016, "Ternary Weight Networks",
    arXiv 1605.04711, equation 6). sign(0) = 0 here: zero is one of the three values. NaN stays NaN.

    Args:
        x: any shape and float dtype.
        threshold: 0 or more; not used when `ternary_weight_networks` is True.
        ternary_weight_networks: whether d is 0.7 mean|x|.
        clip_value: above 0; the gradient is cancelled where |x| exceeds it.
    """

    @tf.custom_gradient
    def quantize(latent: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return pass_within(upstream, latent, clip_value)

        # Compared in float32: a threshold of 0.05 is not a bfloat16 number.
        wide = tf.cast(latent, tf.float32)
        limit = 0.7 * tf.reduce_mean(tf.abs(wide)) if ternary_weight_networks else tf.constant(threshold, tf.float32)
        value = tf.cast(wide > limit, latent.dtype) - tf.cast(wide < -limit, latent.dtype)
        return tf.where(tf.math.is_nan(latent), latent, value), gradient

    x = tf.convert_to_tensor(x)
    quantized = quantize(x)
    declare_override("ste_tern", [x], quantized, lambda latent: tf.clip_by_value(latent, -clip_value, clip_value))
    return quantized
