"""Mean and variance of channels over a batch that several replicas share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

Mean: TypeAlias = "Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]"


def synchronized_moments(x: tf.Tensor, *, axis: int, shift: tf.Tensor, mean: Mean) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and biased variance of channels over all replicas' parts of a batch, which are equal in size.

    var = mean(var_r + (mean_r - shift)^2) - (mean - shift)^2 over replicas r: one sum for both. The variance within a
    part is that of two passes, and the shift takes the common size of the means out of the difference of squares, which
    would round (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").

    A mean is taken axis by axis: one long sum in float32 rounds by more than the number of replicas may change (over
    24,000 entries a channel, `tf.nn.moments` was 4e-5 away from the mean).

    Args:
        x: this replica's part, float32, [..., channels, ...].
        axis: of the channels, 0 or more.
        shift: float32 [channels], the same on every replica, near the mean, such as a moving one; gets no gradient.
        mean: returns the means of tensors over the replicas, as `Replica.mean` does, with gradients.

    Returns:
        mean and variance, float32 [channels], the same on every replica.
    """
    others = [place for place in reversed(range(x.shape.rank)) if place != axis]
    own_mean = _mean_of_each(x, others)
    own_variance = _mean_of_each(tf.math.squared_difference(x, tf.stop_gradient(own_mean)), others)
    shift = tf.stop_gradient(shift)
    distance = tf.reshape(own_mean, [-1]) - shift
    distance, squared = mean([distance, tf.reshape(own_variance, [-1]) + tf.square(distance)])
    return shift + distance, squared - tf.square(distance)


def _mean_of_each(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Return the mean over axes, one after the other; they stay, with one entry."""
    for axis in axes:
        x = tf.reduce_mean(x, axis, keepdims=True)
    return x
