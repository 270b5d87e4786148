"""Moments over parts of a batch are those of the whole, for large means, and so are their gradients."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hookline.trainer.ops.batch_norm import synchronized_moments


def by_parts(
    x: tf.Tensor, parts: int, *, axis: int = -1, shift: tf.Tensor | None = None
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Return the moments as each of several replicas has them, all in one process.

    The first pass notes what each replica gives to the mean; the second one gives all of them the means.
    """
    axis %= x.shape.rank
    shift = tf.zeros([x.shape[axis]]) if shift is None else shift
    slices = tf.split(x, parts)
    given_: list[list[tf.Tensor]] = []

    def note(tensors):
        given_.append(list(tensors))
        return list(tensors)

    for each in slices:
        synchronized_moments(each, axis=axis, shift=shift, mean=note)
    means = [tf.add_n(group) / parts for group in zip(*given_, strict=True)]
    return [synchronized_moments(each, axis=axis, shift=shift, mean=lambda _: means) for each in slices]


@given(
    seed=st.integers(0, 2**16),
    parts=st.sampled_from([1, 2, 4]),
    each=st.integers(1, 6),
    size=st.integers(1, 5),
    mean=st.floats(-100.0, 100.0),
    log_scale=st.floats(-2.0, 2.0),
)
def test_moments_of_the_parts_are_those_of_the_whole(seed, parts, each, size, mean, log_scale) -> None:
    generator = np.random.default_rng(seed)
    scale = 10.0**log_scale
    x = (mean + scale * generator.normal(size=(parts * each, size, 3))).astype(np.float32)
    whole = x.astype(np.float64)
    near = tf.constant((whole.mean((0, 1)) + 0.1 * scale).astype(np.float32))
    for found_mean, variance in by_parts(tf.constant(x), parts, shift=near):
        np.testing.assert_allclose(found_mean, whole.mean((0, 1)), rtol=1e-5, atol=1e-5 * scale)
        bound = 1e-5 * scale**2 + (1e-6 * mean) ** 2
        np.testing.assert_allclose(variance, whole.var((0, 1)), rtol=1e-4, atol=bound)


def test_the_gradient_is_that_of_the_moments_of_the_whole() -> None:
    generator = np.random.default_rng(1)
    x = tf.constant(generator.normal(size=(6, 4, 3)).astype(np.float32))
    up_mean, up_variance = (tf.constant(generator.normal(size=3).astype(np.float32)) for _ in range(2))

    def through(moments) -> tf.Tensor:
        mean, variance = moments
        return tf.reduce_sum(mean * up_mean) + tf.reduce_sum(variance * up_variance)

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        whole = through(tf.nn.moments(x, [0, 1]))
        parts = through(by_parts(x, 3, shift=tf.constant([0.5, -1.0, 0.0]))[0])
    np.testing.assert_allclose(tape.gradient(parts, x), tape.gradient(whole, x), rtol=1e-4, atol=1e-6)


def test_the_axis_is_heeded_and_large_means_do_not_drown_the_variance() -> None:
    x = (3000.0 + np.random.default_rng(0).normal(size=(8, 3, 50, 2))).astype(np.float32)
    exact, shift = x.astype(np.float64), tf.constant([3000.5, 2999.5, 3000.0])
    for mean, variance in by_parts(tf.constant(x), 2, axis=1, shift=shift):
        np.testing.assert_allclose(mean, exact.mean((0, 2, 3)), rtol=1e-6)
        np.testing.assert_allclose(variance, exact.var((0, 2, 3)), rtol=1e-4)
