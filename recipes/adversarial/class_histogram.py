"""Which classes samples belong to, beside those of the data."""

from __future__ import annotations

import tensorflow as tf


def class_shares(labels: tf.Tensor, classes: int) -> tf.Tensor:
    """Return the share of each class.

    Args:
        labels: integers [n] in [0, classes), n at least 1; of samples, what a classifier takes them for.
        classes: their number.

    Returns:
        float32 [classes], of sum 1.
    """
    counts = tf.math.bincount(tf.cast(labels, tf.int32), minlength=classes, maxlength=classes, dtype=tf.float32)
    return counts / tf.reduce_sum(counts)


def share_distances(generated: tf.Tensor, real: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return how far the classes of samples are from those of the data.

    - total_variation: half the sum of |p - q|, in [0, 1]: the share of samples that has to change class.
    - kl: KL(p || q) = sum p log(p / q) in nats, of the generated shares p to the real ones q; infinite where a class is
      generated that the data does not have.
    - missing: how many classes the data has and no sample is taken for.

    Args:
        generated: float32 [classes], see `class_shares`.
        real: the same of the data.

    Returns:
        float32 scalars by name: "total_variation", "kl", "missing".
    """
    ratio = tf.where(generated > 0.0, generated / real, 1.0)  # x / 0 is infinite, and so is its logarithm
    missing = tf.logical_and(real > 0.0, tf.equal(generated, 0.0))
    return {
        "total_variation": 0.5 * tf.reduce_sum(tf.abs(generated - real)),
        "kl": tf.maximum(tf.reduce_sum(generated * tf.math.log(ratio)), 0.0),  # below 0 by rounding alone
        "missing": tf.reduce_sum(tf.cast(missing, tf.float32)),
    }
