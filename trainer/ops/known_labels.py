"""Labels that name a class, and rows that any device may gather."""

from __future__ import annotations

import tensorflow as tf


def known_labels(labels: tf.Tensor, classes: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which labels lie in [0, classes), and the labels with all others set to 0.

    For a row out of range `tf.gather` raises on a CPU, gives zeros on a GPU and the nearest row under XLA. These rows
    are in range; what becomes of an unknown label is for the caller to say.

    Args:
        labels: integers, any shape.
        classes: number of classes.

    Returns:
        bool and int64, in the shape of the labels.
    """
    labels = tf.cast(labels, tf.int64)  # small unsigned integers cannot be compared with any number of classes
    known = tf.logical_and(labels >= 0, labels < classes)
    return known, tf.where(known, labels, tf.zeros_like(labels))
