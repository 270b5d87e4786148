"""Two halves of a split, each of which is searched for neighbours of the other."""

from __future__ import annotations

import tensorflow as tf


def halves(targets: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """Return the half, 0 or 1, of each example: int32 [examples].

    The examples of each class go by turns to the two halves, the first one to half 0. So the halves share no image, and
    each holds half of every class, to within one example.

    Args:
        targets: class numbers of at least 0, integers [examples].
        order: numbers that differ, such as rows in the source, int64 [examples]: who comes first in a class.
    """
    by_order = tf.argsort(order)
    by_class = tf.gather(by_order, tf.argsort(tf.gather(targets, by_order), stable=True))
    sorted_targets = tf.gather(targets, by_class)
    start = tf.searchsorted(sorted_targets, sorted_targets, side="left")
    rank = tf.range(tf.size(targets)) - start
    return tf.gather(rank % 2, tf.math.invert_permutation(by_class))
