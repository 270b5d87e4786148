"""Codebooks against NumPy: where centroids begin, which one is nearest, what moves them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks.clustering.codebook import clustered, initial_centroids, member_sums, nearest

WEIGHTS = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)


def placed(init: str, weights: np.ndarray, count: int) -> np.ndarray:
    """Return the centroids of a definition, in float64."""
    flat = np.sort(weights.ravel().astype(np.float64))
    even = np.linspace(flat[0], flat[-1], count)
    if init != "kmeans":
        return even if init == "linear" else np.quantile(flat, np.linspace(0, 1, count))
    for _ in range(50):
        near = np.abs(flat[:, None] - even).argmin(axis=1)
        even = np.array([flat[near == j].mean() if (near == j).any() else even[j] for j in range(count)])
    return even


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("init", ["linear", "density", "kmeans"])
def test_centroids_begin_where_the_definition_says(init: str, xla: bool) -> None:
    made = tf.function(initial_centroids, jit_compile=xla)
    np.testing.assert_allclose(made(tf.constant(WEIGHTS), 6, init), placed(init, WEIGHTS, 6), atol=1e-5)
    sparse = np.where(np.abs(WEIGHTS) < 0.7, np.float32(0), WEIGHTS)
    expected = np.sort([0.0, *placed(init, sparse[sparse != 0], 5)])
    np.testing.assert_allclose(made(tf.constant(sparse), 6, init, with_zero=True), expected, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(-40, 40), min_size=1, max_size=30),
    centroids=st.lists(st.integers(-40, 40), min_size=2, max_size=8, unique=True),
)
def test_the_nearest_centroid_is_found_in_any_order(weights: list[int], centroids: list[int]) -> None:
    values, codes = np.float32(weights) / 8, np.float32(centroids) / 8
    found = codes[nearest(tf.constant(values), tf.constant(codes)).numpy()]
    np.testing.assert_array_equal(np.abs(values - found), np.abs(values[:, None] - codes).min(axis=1))


def test_values_are_centroids_exactly_and_the_gradient_passes() -> None:
    codes = tf.constant([0.1, -0.7, 0.3], tf.float32)
    with tf.GradientTape() as tape:
        weights = tf.constant(1e3 * WEIGHTS)  # far away: w + (c - w) would round
        tape.watch(weights)
        found = clustered(weights, codes)
        loss = tf.reduce_sum(found * WEIGHTS)
    assert set(np.unique(found)) <= set(codes.numpy())
    np.testing.assert_array_equal(tape.gradient(loss, weights), WEIGHTS)


def test_a_centroid_gets_the_sum_of_its_members() -> None:
    members = tf.constant([[0, 2], [2, 2]])
    np.testing.assert_array_equal(member_sums(tf.constant([[1.0, 2.0], [4.0, 8.0]]), members, 4), [1.0, 0.0, 14.0, 0.0])
