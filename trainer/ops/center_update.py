"""The class centers' update of the center loss."""

from __future__ import annotations

import tensorflow as tf

from trainer.ops.known_labels import known_labels


def center_sums(
    centers: tf.Tensor, features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return for each class the sum of (c - x) over its examples, and how many they are.

    Sums and counts of parts of a batch add up to those of the whole: over several replicas, add both up, then divide
    with `center_change`. An example whose label is outside [0, classes) does not count, on any device.

    Args:
        centers: float [classes, d].
        features: float [batch, d].
        labels: integers [batch].
        weights: [batch], how often each example counts, 0 for padding; None for once each.

    Returns:
        Sums [classes, d] and counts [classes], in the dtype of the centers; 0 for a class without an example.
    """
    centers = tf.convert_to_tensor(centers)
    classes = centers.shape[0]
    known, rows = known_labels(labels, classes)
    counted = tf.cast(known, centers.dtype)
    if weights is not None:
        counted *= tf.cast(weights, centers.dtype)
    difference = tf.gather(centers, rows) - tf.cast(features, centers.dtype)
    sums = tf.math.unsorted_segment_sum(tf.math.multiply_no_nan(difference, counted[:, tf.newaxis]), rows, classes)
    return sums, tf.math.unsorted_segment_sum(counted, rows, classes)


def center_change(sums: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Return sum(c - x) / (1 + n) for each class (Wen et al. 2016, equation 4): [classes, d].

    A center moves by -alpha times this. However many examples of a class a batch holds, that is less than alpha of the
    way to their mean. Without 1 + n it is alpha n of the way: beyond the mean, and away from it where alpha n > 2. A
    class without an example does not move.

    Args:
        sums: of (c - x), [classes, d].
        counts: [classes].
    """
    return sums / (1.0 + counts)[:, tf.newaxis]
