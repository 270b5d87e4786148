"""Shares of classes and their distances, against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes.adversarial.sample_quality import class_shares, share_distances

CLASSES = 5
LABELS = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=50)


def shares(labels) -> np.ndarray:
    return class_shares(tf.constant(labels, tf.int64), CLASSES).numpy()


def distances(generated, real) -> dict[str, float]:
    found = tf.function(share_distances, autograph=False)(tf.constant(generated), tf.constant(real))
    return {name: float(value) for name, value in found.items()}


@settings(deadline=None, max_examples=40)
@given(LABELS, LABELS)
def test_distances_are_those_of_the_definition(first, second) -> None:
    p, q = shares(first), shares(second)
    np.testing.assert_allclose(p, np.bincount(first, minlength=CLASSES) / len(first), rtol=1e-6)
    found = distances(p, q)
    kl = 0.0
    for one, two in zip(p.tolist(), q.tolist(), strict=True):
        if one:
            kl += one * math.log(one / two) if two else math.inf
    assert found["total_variation"] == pytest.approx(0.5 * np.abs(p - q).sum(), abs=1e-6)
    assert found["kl"] == pytest.approx(kl, abs=1e-5)
    assert found["missing"] == len(set(second) - set(first))
