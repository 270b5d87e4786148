"""Class centers: the update of center loss, and distances within and between classes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def known_labels(labels: tf.Tensor, classes: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which labels lie in [0, classes), and the labels with all others set to 0.

    The latter are valid for `tf.gather` on any device; the caller decides how to treat unknown labels.

    Args:
        labels: integers, any shape.
        classes: number of classes.

    Returns:
        bool and int64, in the shape of the labels.
    """
    labels = tf.cast(labels, tf.int64)  # small unsigned types cannot hold every number of classes
    known = tf.logical_and(labels >= 0, labels < classes)
    return known, tf.where(known, labels, tf.zeros_like(labels))


def center_sums(
    centers: tf.Tensor, features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return for each class the sum of (c - x) over its examples, and the number of these examples.

    Sums and counts over parts of a batch, such as those of replicas, add up to those of the whole. Examples with a
    label outside [0, classes) are ignored on any device.

    Args:
        centers: float [classes, d].
        features: float [batch, d].
        labels: integers [batch].
        weights: [batch], weight of each example, 0 for padding; None for 1 each.

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

    A center moves by -alpha times this, less than alpha of the way to the mean of its examples. Without 1 + n it would
    move alpha n of the way: past the mean if alpha n > 1, and farther from it than before if alpha n > 2.

    Args:
        sums: sums of (c - x), [classes, d].
        counts: [classes].
    """
    return sums / (1.0 + counts)[:, tf.newaxis]


MOST_PAIRS = 10_000


def class_distances(features: tf.Tensor, labels: tf.Tensor, classes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the within-class distance and the between-class distance of a set of examples.

    Within is the mean over examples of the Euclidean distance to their class mean; between is the mean over pairs of
    classes of the distance between their means. Both depend on these examples alone, so networks trained with and
    without centers can be compared, and within / between does not depend on the scale of the features.

    Args:
        features: float [examples, d].
        labels: integers [examples] in [0, classes); any other label makes within NaN.
        classes: number of classes; those without an example are ignored.

    Returns:
        Two float32 scalars. Between is 0 if fewer than two classes have examples.
    """
    features = tf.cast(features, tf.float32)
    known, rows = known_labels(labels, classes)
    counted = tf.cast(known, tf.float32)[:, tf.newaxis]
    counts = tf.math.unsorted_segment_sum(counted, rows, classes)
    means = tf.math.divide_no_nan(tf.math.unsorted_segment_sum(features * counted, rows, classes), counts)
    distances = tf.norm(features - tf.gather(means, rows), axis=-1)
    within = tf.reduce_mean(tf.where(known, distances, float("nan")))
    return within, mean_pair_distance(means, counts[:, 0] > 0.0)


def mean_pair_distance(points: tf.Tensor, present: tf.Tensor | None = None) -> tf.Tensor:
    """Return the mean Euclidean distance over pairs of points, a scalar; 0 if there is no pair.

    All pairs are used for up to 141 points, and a fixed random sample of 10,000 pairs for more.

    Args:
        points: float [points, d], with a known number of points.
        present: bool [points], which of them count; None for all.
    """
    first, second = point_pairs(points.shape[0])
    distances = tf.norm(tf.gather(points, first) - tf.gather(points, second), axis=-1)
    if present is None:
        return tf.math.divide_no_nan(tf.reduce_sum(distances), float(len(first)))
    counted = tf.cast(tf.logical_and(tf.gather(present, first), tf.gather(present, second)), points.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(distances * counted), tf.reduce_sum(counted))


def point_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the first and the second point of all pairs, or of 10,000 pairs drawn with a fixed seed."""
    if count * (count - 1) // 2 <= MOST_PAIRS:
        first, second = np.triu_indices(count, k=1)
        return first.astype(np.int64), second.astype(np.int64)
    generator = np.random.default_rng(0)
    first = generator.integers(count, size=MOST_PAIRS)
    return first, (first + generator.integers(1, count, size=MOST_PAIRS)) % count
