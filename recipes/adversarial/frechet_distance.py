"""The Frechet distance between two sets of features, as of two normal distributions."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from trainer.input.source import HOST


class Moments(NamedTuple):
    """Hold the mean and the covariance of features.

    Attributes:
        mean: float64 [d].
        covariance: float64 [d, d], unbiased: the sum of products over n - 1.
    """

    mean: tf.Tensor
    covariance: tf.Tensor


def moments(features: tf.Tensor) -> Moments:
    """Return the moments of features.

    Args:
        features: floats [n, d], n at least 2.
    """
    with tf.device(HOST):
        values = tf.cast(features, tf.float64)
        mean = tf.reduce_mean(values, axis=0)
        centered = values - mean
        products = tf.matmul(centered, centered, transpose_a=True)
        return Moments(mean, products / tf.cast(tf.shape(values)[0] - 1, tf.float64))


def frechet_distance(first: Moments, second: Moments) -> tf.Tensor:
    """Return the squared Frechet distance d^2 between the normal distributions with these moments.

    d^2 = |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)): Dowson and Landau 1982; as a measure of generated images, with
    the features of another classifier, Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule". Its
    value depends on the classifier and on how many samples there are (few samples give larger values): compare values
    of one classifier and one count alone.

    Args:
        first: of one set.
        second: of the other, of the same d.

    Returns:
        float32 scalar of 0 or more.
    """
    with tf.device(HOST):  # float64, which accelerators are slow at
        # tr (S1 S2)^(1/2) is the sum of the singular values of S1^(1/2) S2^(1/2). The root of the product S1 S2 itself
        # would turn rounding errors e into sqrt(e), and may be complex where features are nearly dependent.
        root = tf.matmul(_square_root(first.covariance), _square_root(second.covariance))
        shared = tf.reduce_sum(tf.linalg.svd(root, compute_uv=False))
        spread = tf.linalg.trace(first.covariance) + tf.linalg.trace(second.covariance) - 2.0 * shared
        apart = tf.reduce_sum(tf.square(first.mean - second.mean))
        return tf.cast(tf.maximum(apart + spread, 0.0), tf.float32)  # below 0 by rounding alone


def _square_root(covariance: tf.Tensor) -> tf.Tensor:
    """Return the symmetric square root of a covariance, float64 [d, d]."""
    values, vectors = tf.linalg.eigh(covariance)
    return tf.matmul(vectors * tf.sqrt(tf.maximum(values, 0.0)), vectors, transpose_b=True)
