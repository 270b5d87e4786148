"""The Frechet distance, against the matrix square root of its definition in NumPy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes.adversarial.sample_quality import frechet_distance, moments

SEEDS = st.integers(0, 2**31 - 1)


def expected(first: np.ndarray, second: np.ndarray) -> float:
    """Return the distance by the eigenvalues of the product S1 S2, which needs no symmetric form."""
    means = first.mean(axis=0) - second.mean(axis=0)
    one, two = (np.atleast_2d(np.cov(each, rowvar=False)) for each in (first, second))
    roots = np.sqrt(np.maximum(np.linalg.eigvals(one @ two).real, 0.0))
    return float(means @ means + np.trace(one) + np.trace(two) - 2.0 * roots.sum())


@functools.cache
def traced(width: int):
    spec = tf.TensorSpec([None, width], tf.float32)
    return tf.function(
        lambda first, second: frechet_distance(moments(first), moments(second)),
        autograph=False,
        input_signature=[spec, spec],
    )


def distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(traced(first.shape[1])(tf.constant(first, tf.float32), tf.constant(second, tf.float32)))


def features(seed: int, count: int, width: int, scale: float = 1.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    mixed = generator.normal(size=(count, width)) @ generator.normal(size=(width, width))
    return (scale * (mixed + generator.normal(size=width))).astype(np.float32)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(12, 40), st.integers(12, 40), st.integers(1, 8))
def test_distance_is_that_of_the_definition(seed, first_count, second_count, width) -> None:
    first, second = features(seed, first_count, width), features(seed + 1, second_count, width)
    there = expected(first.astype(np.float64), second.astype(np.float64))
    assert distance(first, second) == pytest.approx(there, rel=1e-4, abs=1e-4)
    assert distance(second, first) == pytest.approx(there, rel=1e-4, abs=1e-4)


def test_fewer_examples_than_features_and_dead_features_stay_exact() -> None:
    """Covariances without full rank: a root of the product S1 S2 would leave errors of 1e-8 times their size."""
    generator = np.random.default_rng(0)
    first = np.maximum(1000.0 * generator.normal(size=(20, 64)), 0.0).astype(np.float32)
    first[:, 5:20] = 0.0
    assert distance(first, first) < 1e-6
    assert distance(first, first + np.float32(1.0)) == pytest.approx(64.0, rel=1e-3)


def test_large_means_do_not_swallow_small_spreads() -> None:
    values = features(1, 100, 3, scale=0.01)
    wide = 2.0 * (values - values.mean(axis=0)) + values.mean(axis=0)
    near, far = distance(values, wide), distance(values + 64.0, wide + 64.0)
    assert far == pytest.approx(near, rel=0.01)
    assert near > 0.0
    found = moments(tf.constant(values[:7]))
    np.testing.assert_allclose(found.mean, values[:7].mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(found.covariance, np.cov(values[:7].astype(np.float64), rowvar=False), rtol=1e-9)
