"""Which pairs of a batch are positive, and which negative."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Pairs:
    """Mark the pairs (anchor, other) of a batch.

    Attributes:
        positive: bool [batch, batch]: two different examples of one class.
        negative: bool [batch, batch]: examples of two classes.
    """

    positive: tf.Tensor
    negative: tf.Tensor


def class_pairs(targets: tf.Tensor, weights: tf.Tensor) -> Pairs:
    """Return the pairs of the real examples.

    Args:
        targets: integers [batch].
        weights: float32 [batch]; an example of weight 0 is padding, and in no pair.
    """
    real = weights > 0.0
    both_real = tf.logical_and(real[:, tf.newaxis], real[tf.newaxis, :])
    same = tf.equal(targets[:, tf.newaxis], targets[tf.newaxis, :])
    itself = tf.eye(tf.shape(targets)[0], dtype=tf.bool)
    positive = tf.logical_and(tf.logical_and(same, tf.logical_not(itself)), both_real)
    return Pairs(positive, tf.logical_and(tf.logical_not(same), both_real))


def mean_distance(distances: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Return the mean distance of the chosen pairs, 0 where there is none: float32 [].

    Args:
        distances: float32 [batch, batch].
        chosen: bool [batch, batch].
    """
    count = tf.reduce_sum(tf.cast(chosen, tf.float32))
    return tf.math.divide_no_nan(tf.reduce_sum(tf.where(chosen, distances, 0.0)), count)
