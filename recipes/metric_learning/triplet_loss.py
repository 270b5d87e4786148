"""The loss of triplets, with a margin or soft."""

from __future__ import annotations

import tensorflow as tf

from recipes.metric_learning.triplet_mining import Triplets


def triplet_loss(triplets: Triplets, margin: float | None, *, over_active: bool) -> tf.Tensor:
    """Return the mean loss of triplets, 0 with a gradient of 0 where there is none: float32 [].

    One triplet costs max(0, positive - negative + margin) (Schroff et al. 2015, equation 3), or
    log(1 + exp(positive - negative)) with the soft margin (Hermans et al. 2017, section 2).

    Args:
        triplets: mined ones.
        margin: above 0, in the unit of the distances; None for the soft margin.
        over_active: whether to take the mean over the active triplets alone: among all triplets of a batch nearly all
            cost nothing after a while and would drown the others (Hermans et al. 2017, section 3.2).
    """
    gap = _gap(triplets)
    losses = tf.nn.softplus(gap) if margin is None else tf.nn.relu(gap + margin)
    # With the soft margin every triplet costs something.
    counted = triplets.valid if margin is None or not over_active else active_triplets(triplets, margin)
    losses = tf.where(counted, losses, 0.0)
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(tf.cast(counted, tf.float32)))


def active_triplets(triplets: Triplets, margin: float | None) -> tf.Tensor:
    """Return which triplets are not yet as they should be: bool, of their shape.

    Args:
        triplets: mined ones.
        margin: above 0: those whose loss is above 0. None: those whose positive is not nearer than the negative.
    """
    gap = _gap(triplets)
    wrong = gap >= 0.0 if margin is None else gap + margin > 0.0
    return tf.logical_and(triplets.valid, wrong)


def _gap(triplets: Triplets) -> tf.Tensor:
    """Return how much farther the positive is than the negative; 0 where there is no triplet."""
    return tf.where(triplets.valid, triplets.positive - triplets.negative, 0.0)
