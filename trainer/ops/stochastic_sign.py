"""The sign as a draw."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.ops.hard_sigmoid import hard_sigmoid
from trainer.ops.overridden import declare_override
from trainer.ops.pass_within import pass_within


def stochastic_sign(x: tf.Tensor, *, seed: tf.Tensor) -> tf.Tensor:
    """Return +1 with probability hard_sigmoid(x), else -1; backward 1{|x| <= 1}.

    The draw is a pure function of the seed. Its mean is clip(x, -1, 1). NaN stays NaN.
    Courbariaux et al. 2015, "BinaryConnect", arXiv 1511.00363, equation 2.

    Args:
        x: any shape and float dtype.
        seed: int32 or int64, shape [2]. Two draws need two seeds.
    """

    @tf.custom_gradient
    def quantize(latent: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return pass_within(upstream, latent, 1.0)

        # float32 draws in [0, 1): bfloat16 ones would be 0 in one of 128 cases and bias the mean.
        draw = tf.random.stateless_uniform(tf.shape(latent), tf.stop_gradient(seed), dtype=tf.float32)
        ones = tf.ones_like(latent)
        value = tf.where(draw < hard_sigmoid(tf.cast(latent, tf.float32)), ones, -ones)
        return tf.where(tf.math.is_nan(latent), latent, value), gradient

    x = tf.convert_to_tensor(x)
    drawn = quantize(x)
    declare_override("stochastic_sign", [x], drawn, lambda latent: tf.clip_by_value(latent, -1.0, 1.0))
    return drawn
