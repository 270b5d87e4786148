"""A Bernoulli draw with a gradient, and a feature map gated by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from trainer.ops.overridden import declare_override

Uniform: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tf.Tensor]"
GateGradient: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]"


def bernoulli_through(probability: tf.Tensor, *, seed: tf.Tensor) -> tf.Tensor:
    """Return r ~ Bernoulli(A), exactly 0 or 1; backward dL/dA = dL/dr, everywhere.

    The draw is a pure function of the seed; XLA draws other values than TensorFlow does. A = 0 is never drawn, A = 1
    always; NaN stays NaN. Bengio, Leonard and Courville 2013, arXiv 1308.3432, section 4.

    Args:
        probability: A, any shape and float dtype, in [0, 1].
        seed: int32 or int64, shape [2]. Two draws need two seeds.
    """

    @tf.custom_gradient
    def draw(given: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _draw(given, seed), lambda upstream: upstream

    probability = tf.convert_to_tensor(probability)
    drawn = draw(probability)
    declare_override("bernoulli_through", [probability], drawn, tf.identity)
    return drawn


def uniform_numbers(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return float32 numbers in [0, 1), in the shape of a tensor: a pure function of the seed.

    Args:
        like: any dtype.
        seed: int32 or int64, shape [2].
    """
    return tf.random.stateless_uniform(tf.shape(like), seed, dtype=tf.float32)


def bernoulli_gate(
    features: tf.Tensor, probability: tf.Tensor, *, seed: tf.Tensor, uniform: Uniform = uniform_numbers
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return y = r * x and r ~ Bernoulli(A): one draw an example and position, for all channels; E[y] = A * x.

    Backward, with the r of the forward pass: dL/dx = r * dL/dy, and dL/dA = the sum over channels of x * dL/dy, plus
    dL/dr. Nothing is divided by A. Sums are taken in float32. Wang et al. 2017, arXiv 1710.11446, "Impdrop".

    Args:
        features: x, [batch, height, width, channels], any float dtype.
        probability: A, [batch, height, width, 1], in [0, 1]; any float dtype, perhaps another than that of x.
        seed: int32 or int64, shape [2]. Two draws need two seeds.
        uniform: called as uniform(A, seed); returns the numbers in [0, 1) that A is compared with, float32.

    Returns:
        y in the shape and dtype of x, and r in those of A.
    """

    @tf.custom_gradient
    def gate(x: tf.Tensor, given: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], GateGradient]:
        mask = _draw(given, seed, uniform)

        def gradient(upstream: tf.Tensor, upstream_mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            products = tf.cast(x, tf.float32) * tf.cast(upstream, tf.float32)
            summed = tf.reduce_sum(products, axis=-1, keepdims=True)
            return tf.cast(mask, x.dtype) * upstream, tf.cast(summed, given.dtype) + upstream_mask

        return (tf.cast(mask, x.dtype) * x, mask), gradient

    features, probability = tf.convert_to_tensor(features), tf.convert_to_tensor(probability)
    gated, mask = gate(features, probability)

    def product(x: tf.Tensor, given: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn = given + tf.stop_gradient(mask - given)
        return tf.cast(drawn, x.dtype) * x, drawn

    declare_override("bernoulli_gate", [features, probability], (gated, mask), product)
    return gated, mask


def _draw(probability: tf.Tensor, seed: tf.Tensor, uniform: Uniform = uniform_numbers) -> tf.Tensor:
    # Drawn and compared in float32: bfloat16 has 2^-8 between numbers near 1, and would draw 0 too often.
    numbers = uniform(probability, tf.stop_gradient(seed))
    mask = tf.cast(numbers < tf.cast(probability, tf.float32), probability.dtype)
    return tf.where(tf.math.is_nan(probability), probability, mask)
