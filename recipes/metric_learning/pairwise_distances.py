"""Distances between all pairs of a batch."""

from __future__ import annotations

import tensorflow as tf


def pairwise_distances(embeddings: tf.Tensor, *, squared: bool = False) -> tf.Tensor:
    """Return the Euclidean distances between all pairs of embeddings.

    They are computed from the differences, in memory of batch * batch * d: exactly 0 for equal embeddings, on every
    device. (The usual a^2 + b^2 - 2ab cancels where two are close, and a GPU may round its products to 10 bits.)

    The root has no derivative at 0, where TensorFlow gives infinity and NaN. Here it is 0: two equal embeddings pull in
    no direction.

    Args:
        embeddings: float32 [batch, d].
        squared: whether to return the squares of the distances.

    Returns:
        float32 [batch, batch].
    """
    differences = embeddings[:, tf.newaxis] - embeddings[tf.newaxis, :]
    squares = tf.reduce_sum(tf.square(differences), axis=-1)
    if squared:
        return squares
    apart = squares > 0.0
    return tf.where(apart, tf.sqrt(tf.where(apart, squares, 1.0)), 0.0)
