"""Triplet loss and its mining."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf


def pairwise_distances(embeddings: tf.Tensor, *, squared: bool = False) -> tf.Tensor:
    """Return the Euclidean distances between all pairs of embeddings.

    They are computed from the differences, in memory of batch * batch * d: exactly 0 for equal embeddings, on every
    device. (The usual a^2 + b^2 - 2ab cancels where two are close, and a GPU may round its products to 10 bits.)

    The root has no derivative at 0, where TensorFlow gives infinity and NaN. Here it is 0: two equal embeddings pull in
    no direction.
    """
    differences = embeddings[:, tf.newaxis] - embeddings[tf.newaxis, :]
    squares = tf.reduce_sum(tf.square(differences), axis=-1)
    if squared:
        return squares
    apart = squares > 0.0
    return tf.where(apart, tf.sqrt(tf.where(apart, squares, 1.0)), 0.0)


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
    """Return the pairs of the real examples."""
    real = weights > 0.0
    both_real = tf.logical_and(real[:, tf.newaxis], real[tf.newaxis, :])
    same = tf.equal(targets[:, tf.newaxis], targets[tf.newaxis, :])
    itself = tf.eye(tf.shape(targets)[0], dtype=tf.bool)
    positive = tf.logical_and(tf.logical_and(same, tf.logical_not(itself)), both_real)
    return Pairs(positive, tf.logical_and(tf.logical_not(same), both_real))


def mean_distance(distances: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Return the mean distance of the chosen pairs, 0 where there is none: float32 []."""
    count = tf.reduce_sum(tf.cast(chosen, tf.float32))
    return tf.math.divide_no_nan(tf.reduce_sum(tf.where(chosen, distances, 0.0)), count)


def halves(targets: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """Return the half, 0 or 1, of each example: int32 [examples].

    The examples of each class alternate between the two halves, the first one in half 0. So the halves share no image,
    and each holds half of every class, to within one example.
    """
    by_order = tf.argsort(order)
    by_class = tf.gather(by_order, tf.argsort(tf.gather(targets, by_order), stable=True))
    sorted_targets = tf.gather(targets, by_class)
    start = tf.searchsorted(sorted_targets, sorted_targets, side="left")
    rank = tf.range(tf.size(targets)) - start
    return tf.gather(rank % 2, tf.math.invert_permutation(by_class))


FAR = 1e9  # further than any two embeddings of length 1; finite, so that its gradient is a number


@dataclass(frozen=True)
class Triplets:
    """Hold the distances of triplets. All three tensors have one shape; the first axis is the anchor's.

    Attributes:
        positive: float32, from the anchor to the positive.
        negative: float32, from the anchor to the negative.
        valid: bool, False where there is no such triplet; the distances there mean nothing.
    """

    positive: tf.Tensor
    negative: tf.Tensor
    valid: tf.Tensor


Mining: TypeAlias = "Callable[[tf.Tensor, Pairs], Triplets]"
"""Called with distances [batch, batch] and the pairs."""


def batch_hard(distances: tf.Tensor, pairs: Pairs) -> Triplets:
    """Return for each anchor its farthest positive and its nearest negative: [batch].

    Hermans et al., In Defense of the Triplet Loss for Person Re-Identification, 2017, equation 5.
    """
    positive = tf.reduce_max(tf.where(pairs.positive, distances, -FAR), axis=1)
    negative = tf.reduce_min(tf.where(pairs.negative, distances, FAR), axis=1)
    return Triplets(positive, negative, tf.logical_and(_any(pairs.positive), _any(pairs.negative)))


def semi_hard(distances: tf.Tensor, pairs: Pairs) -> Triplets:
    """Return for each positive pair the nearest negative that is farther than the positive: [batch, batch].

    Schroff et al., FaceNet, 2015, section 3.2. If no negative is farther, a case the paper leaves open, the farthest
    negative is used: the least hard of those that are all too hard.
    """
    to_negatives = distances[:, tf.newaxis, :]
    negative = pairs.negative[:, tf.newaxis, :]
    farther = tf.logical_and(negative, to_negatives > distances[:, :, tf.newaxis])
    nearest = tf.reduce_min(tf.where(farther, to_negatives, FAR), axis=2)
    farthest = tf.reduce_max(tf.where(pairs.negative, distances, -FAR), axis=1, keepdims=True)
    chosen = tf.where(_any(farther), nearest, farthest)
    return Triplets(distances, chosen, tf.logical_and(pairs.positive, _any(pairs.negative)[:, tf.newaxis]))


def batch_all(distances: tf.Tensor, pairs: Pairs) -> Triplets:
    """Return every triplet of the batch: [batch, batch, batch], anchors by positives by negatives.

    Hermans et al. 2017, equation 6.
    """
    valid = tf.logical_and(pairs.positive[:, :, tf.newaxis], pairs.negative[:, tf.newaxis, :])
    shape = tf.shape(valid)
    return Triplets(
        tf.broadcast_to(distances[:, :, tf.newaxis], shape), tf.broadcast_to(distances[:, tf.newaxis, :], shape), valid
    )


MININGS: dict[str, Mining] = {"batch_hard": batch_hard, "semi_hard": semi_hard, "batch_all": batch_all}


def _any(chosen: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(chosen, axis=-1)


def triplet_loss(triplets: Triplets, margin: float | None, *, over_active: bool) -> tf.Tensor:
    """Return the mean loss of triplets, 0 with a gradient of 0 where there is none: float32 [].

    One triplet costs max(0, positive - negative + margin) (Schroff et al. 2015, equation 3), or
    log(1 + exp(positive - negative)) with the soft margin (Hermans et al. 2017, section 2).
    """
    gap = _gap(triplets)
    losses = tf.nn.softplus(gap) if margin is None else tf.nn.relu(gap + margin)
    # With the soft margin every triplet costs something.
    counted = triplets.valid if margin is None or not over_active else active_triplets(triplets, margin)
    losses = tf.where(counted, losses, 0.0)
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(tf.cast(counted, tf.float32)))


def active_triplets(triplets: Triplets, margin: float | None) -> tf.Tensor:
    """Return which triplets still violate the margin: bool, of their shape."""
    gap = _gap(triplets)
    wrong = gap >= 0.0 if margin is None else gap + margin > 0.0
    return tf.logical_and(triplets.valid, wrong)


def _gap(triplets: Triplets) -> tf.Tensor:
    """Return how much farther the positive is than the negative; 0 where there is no triplet."""
    return tf.where(triplets.valid, triplets.positive - triplets.negative, 0.0)
