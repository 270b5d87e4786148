"""Codebooks: where centroids begin, which one is nearest, how a gradient moves them. Pure functions of tensors."""

from __future__ import annotations

import tensorflow as tf

LLOYD_STEPS = 50
INITS = ("linear", "density", "kmeans")


def initial_centroids(weights: tf.Tensor, count: int, init: str, *, with_zero: bool = False) -> tf.Tensor:
    """Return ascending centroids, float32 [count]; with `with_zero` one is 0 and the others are those of the nonzeros.

    Args:
        weights: any shape.
        count: of centroids, at least 2.
        init: "linear": evenly from the smallest weight to the largest; "density": evenly spaced quantiles;
            "kmeans": Lloyd's algorithm from the linear ones, until the last of 50 steps.
        with_zero: whether zeros stay zeros.
    """
    flat = tf.sort(tf.reshape(tf.cast(weights, tf.float32), [-1]))
    if not with_zero:
        return _placed(flat, tf.ones_like(flat), count, init)
    counted = tf.cast(flat != 0.0, tf.float32)
    return tf.sort(tf.concat([_placed(flat, counted, count - 1, init), [0.0]], axis=0))


def _placed(ascending: tf.Tensor, counted: tf.Tensor, count: int, init: str) -> tf.Tensor:
    """Return centroids of those of the ascending weights that are counted, 1 or 0 for each."""
    last = tf.maximum(tf.reduce_sum(counted) - 1.0, 0.0)
    present = tf.gather(ascending, tf.argsort(1.0 - counted, stable=True))  # first those that are counted
    even = tf.linspace(0.0, 1.0, count)
    if init == "density":
        places = even * last
        below = tf.cast(tf.floor(places), tf.int32)
        above = tf.minimum(below + 1, tf.cast(last, tf.int32))
        low, high = tf.gather(present, below), tf.gather(present, above)
        return low + (places - tf.floor(places)) * (high - low)
    smallest, largest = present[0], tf.gather(present, tf.cast(last, tf.int32))
    begun = smallest + even * (largest - smallest)
    if init == "linear":
        return begun

    def move(step: tf.Tensor, centroids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        near = nearest(ascending, centroids)
        sums, members = member_sums(ascending * counted, near, count), member_sums(counted, near, count)
        return step + 1, tf.where(members > 0.0, tf.math.divide_no_nan(sums, members), centroids)

    _, moved = tf.while_loop(lambda step, _: step < LLOYD_STEPS, move, [tf.constant(0), begun])
    return moved


def nearest(weights: tf.Tensor, centroids: tf.Tensor) -> tf.Tensor:
    """Return the index of the nearest centroid of each weight, int32; halfway between two, that of the smaller one.

    Args:
        weights: float32, any shape.
        centroids: float32 [count], in any order.
    """
    order = tf.argsort(centroids, stable=True)
    ascending = tf.gather(centroids, order)
    middles = 0.5 * (ascending[1:] + ascending[:-1])
    return tf.reshape(tf.gather(order, tf.searchsorted(middles, tf.reshape(weights, [-1]))), weights.shape)


def clustered(weights: tf.Tensor, centroids: tf.Tensor) -> tf.Tensor:
    """Return the nearest centroid of each weight exactly; the gradient passes to the weights as it is."""

    @tf.custom_gradient
    def pulled(values: tf.Tensor) -> tuple[tf.Tensor, object]:
        found = tf.gather(centroids, nearest(tf.cast(values, tf.float32), centroids))
        return tf.cast(found, values.dtype), lambda upstream: upstream

    return pulled(weights)


def member_sums(values: tf.Tensor, members: tf.Tensor, count: int) -> tf.Tensor:
    """Return the sum of the values of each centroid's members, float32 [count]: of gradients, the centroids' own."""
    return tf.math.unsorted_segment_sum(tf.cast(values, tf.float32), members, count)
