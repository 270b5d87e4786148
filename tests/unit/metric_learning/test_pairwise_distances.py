"""Distances between all pairs: their values, and a gradient that stays a number where two embeddings are equal."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes.metric_learning.triplet_loss import pairwise_distances


def drawn(batch, size, seed=0):
    return np.random.default_rng(seed).normal(size=(batch, size)).astype(np.float32)


def gradient(embeddings, weights, *, squared=False):
    """Return the gradient of the weighted sum of all distances."""
    points = tf.constant(embeddings)
    with tf.GradientTape() as tape:
        tape.watch(points)
        total = tf.reduce_sum(pairwise_distances(points, squared=squared) * weights)
    return tape.gradient(total, points).numpy()


@settings(max_examples=25)
@given(batch=st.integers(1, 9), size=st.integers(1, 5), squared=st.booleans())
def test_they_are_those_of_the_definition(batch, size, squared):
    points = drawn(batch, size).astype(np.float64)
    expected = np.linalg.norm(points[:, None] - points[None], axis=-1) ** (2 if squared else 1)
    found = pairwise_distances(tf.constant(points, tf.float32), squared=squared)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_equal_embeddings_are_exactly_0_apart_and_near_ones_are_not():
    points = np.repeat(drawn(1, 128), 3, axis=0) / 11.0
    points[2, 5] += 1e-5
    found = pairwise_distances(tf.constant(points)).numpy()
    assert found[0, 1] == found[0, 0] == 0.0
    assert found[0, 2] == pytest.approx(1e-5, rel=0.01)  # from products it would be lost in rounding


def test_the_gradient_of_equal_embeddings_is_0():
    points, ones = np.repeat(drawn(1, 4), 3, axis=0), np.ones((3, 3), np.float32)
    for squared in (False, True):
        np.testing.assert_array_equal(gradient(points, ones, squared=squared), np.zeros((3, 4)))
    points = drawn(4, 3)
    points[1] = points[0]
    weights = np.random.default_rng(1).uniform(size=(4, 4)).astype(np.float32)
    apart = weights * (1 - np.eye(4, dtype=np.float32))
    apart[0, 1] = apart[1, 0] = 0.0
    np.testing.assert_allclose(gradient(points, weights), gradient(points, apart), rtol=1e-6)


def test_the_gradient_has_length_1_however_near_two_embeddings_are():
    for distance in (1.0, 1e-3, 1e-9, 1e-15):
        points = np.array([[0.0, 0.0], [distance, 0.0]], np.float32)
        pull = gradient(points, np.array([[0.0, 1.0], [0.0, 0.0]], np.float32))
        np.testing.assert_allclose(pull, [[-1.0, 0.0], [1.0, 0.0]], rtol=1e-5)
