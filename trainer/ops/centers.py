"""Class centers: the update of center loss, and distances within and between classes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def known_labels(labels: tf.Tensor, classes: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which labels lie in [0, classes), and the labels with all others set to 0.

    `tf.gather` takes these on any device; what becomes of an unknown label is for the caller to say.

    Args:
        labels: integers, any shape.
        classes: number of classes.

    Returns:
        bool and int64, in the shape of the labels.
    """
    labels = tf.cast(labels, tf.int64)  # small unsigned integers cannot be compared with any number of classes
    known = tf.logical_and(labels >= 0, labels < classes)
    return known, tf.where(known, labels, tf.zeros_like(labels))


def center_sums(
    centers: tf.Tensor, features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return for each class the sum of (c - x) over its examples, and how many they are.

    Sums and counts of parts of a batch, as on several replicas, add up to those of the whole. An example whose label is
    outside [0, classes) does not count, on any device.

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

    A center moves by -alpha times this, less than alpha of the way to the mean of its examples. Without 1 + n it would
    move alpha n of the way: beyond the mean, and away from it where alpha n > 2.

    Args:
        sums: of (c - x), [classes, d].
        counts: [classes].
    """
    return sums / (1.0 + counts)[:, tf.newaxis]


MOST_PAIRS = 10_000


def class_distances(features: tf.Tensor, labels: tf.Tensor, classes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the distance within classes and the distance between classes of a set of examples.

    Within is the mean over examples of the Euclidean distance to the mean of their class; between is the mean over
    pairs of classes of the distance of their means. Both are of these examples alone, so networks that were trained
    with and without centers compare, and within / between does not depend on the scale of the features.

    Args:
        features: float [examples, d].
        labels: integers [examples] in [0, classes); any other makes within NaN.
        classes: how many there are; those without an example do not count.

    Returns:
        Two float32 scalars. Between is 0 where fewer than two classes have examples.
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
    """Return the mean Euclidean distance over pairs of points, a scalar; 0 where there is no pair.

    Up to 141 points, all pairs count; beyond, 10,000 that are drawn once and for all.

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
    """Return the first and the second point of each pair: of all pairs, or of 10,000 drawn with a fixed seed."""
    if count * (count - 1) // 2 <= MOST_PAIRS:
        first, second = np.triu_indices(count, k=1)
        return first.astype(np.int64), second.astype(np.int64)
    generator = np.random.default_rng(0)
    first = generator.integers(count, size=MOST_PAIRS)
    return first, (first + generator.integers(1, count, size=MOST_PAIRS)) % count
