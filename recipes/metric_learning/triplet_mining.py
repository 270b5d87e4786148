"""Which triplets (anchor, positive, negative) of a batch training learns from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

from recipes.metric_learning.pairs import Pairs

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

    Args:
        distances: float32 [batch, batch].
        pairs: of the same batch.
    """
    positive = tf.reduce_max(tf.where(pairs.positive, distances, -FAR), axis=1)
    negative = tf.reduce_min(tf.where(pairs.negative, distances, FAR), axis=1)
    return Triplets(positive, negative, tf.logical_and(_any(pairs.positive), _any(pairs.negative)))


def semi_hard(distances: tf.Tensor, pairs: Pairs) -> Triplets:
    """Return for each positive pair the nearest negative that is farther than the positive: [batch, batch].

    Schroff et al., FaceNet, 2015, section 3.2. Where no negative is farther, which the paper leaves open, the farthest
    negative stands in: the least hard of those that are all too hard.

    Args:
        distances: float32 [batch, batch].
        pairs: of the same batch.
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

    Args:
        distances: float32 [batch, batch].
        pairs: of the same batch.
    """
    valid = tf.logical_and(pairs.positive[:, :, tf.newaxis], pairs.negative[:, tf.newaxis, :])
    shape = tf.shape(valid)
    return Triplets(
        tf.broadcast_to(distances[:, :, tf.newaxis], shape), tf.broadcast_to(distances[:, tf.newaxis, :], shape), valid
    )


MININGS: dict[str, Mining] = {"batch_hard": batch_hard, "semi_hard": semi_hard, "batch_all": batch_all}


def _any(chosen: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(chosen, axis=-1)
