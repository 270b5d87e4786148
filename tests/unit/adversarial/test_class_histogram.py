"""Shares of classes and their distances, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.adversarial.class_histogram import class_shares, share_distances

CLASSES = 5
LABELS = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=50)


def shares(labels) -> np.ndarray:
    return class_shares(tf.constant(labels, tf.int64), CLASSES).numpy()


def distances(generated, real) -> dict[str, float]:
    found = tf.function(share_distances, autograph=False)(tf.constant(generated), tf.constant(real))
    return {name: float(value) for name, value in found.items()}


@settings(deadline=None, max_examples=30)
@given(LABELS)
def test_shares_are_counts_over_all(labels) -> None:
    np.testing.assert_allclose(shares(labels), np.bincount(labels, minlength=CLASSES) / len(labels), rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(LABELS, LABELS)
def test_distances_are_those_of_the_definition(first, second) -> None:
    p, q = shares(first), shares(second)
    found = distances(p, q)
    kl = 0.0
    for one, two in zip(p.tolist(), q.tolist(), strict=True):
        if one:
            kl += one * math.log(one / two) if two else math.inf
    assert found["total_variation"] == pytest.approx(0.5 * np.abs(p - q).sum(), abs=1e-6)
    assert found["kl"] == pytest.approx(kl, abs=1e-5)
    assert found["missing"] == len(set(second) - set(first))
    assert 0.0 <= found["total_variation"] <= 1.0
    assert found["kl"] >= 0.0
    if math.isfinite(kl):  # Pinsker's inequality
        assert found["total_variation"] <= math.sqrt(kl / 2.0) + 1e-3


def test_equal_shares_have_no_distance_and_other_classes_the_whole() -> None:
    assert distances(shares([0, 1, 1, 2]), shares([0, 1, 1, 2])) == {"total_variation": 0.0, "kl": 0.0, "missing": 0.0}
    apart = distances(shares([0, 1]), shares([2, 3, 4]))
    assert apart == {"total_variation": pytest.approx(1.0), "kl": math.inf, "missing": 3.0}


def test_divergence_is_that_of_the_samples_from_the_data() -> None:
    one, even = shares([0]), shares([0, 1, 2, 3, 4])
    assert distances(one, even)["kl"] == pytest.approx(math.log(CLASSES), rel=1e-6)
    assert distances(even, one)["kl"] == math.inf
