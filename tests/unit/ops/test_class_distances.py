"""Distances within and between classes: the definition, on any split."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hookline.trainer.ops.centers import class_distances, mean_pair_distance, point_pairs
from hookline.trainer.ops.labels import known_labels

CLASSES = 4


def oracle(features: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    means = {k: features[labels == k].mean(axis=0) for k in np.unique(labels)}
    within = np.mean([np.linalg.norm(x - means[y]) for x, y in zip(features, labels, strict=True)])
    pairs = [np.linalg.norm(a - b) for a, b in itertools.combinations(means.values(), 2)]
    return float(within), float(np.mean(pairs)) if pairs else 0.0


def measured(features, labels, classes: int = CLASSES) -> tuple[float, float]:
    within, between = class_distances(tf.constant(features), tf.constant(labels), classes)
    return float(within), float(between)


@given(
    hnp.arrays(np.float32, (12, 2), elements=st.floats(-50.0, 50.0, width=32)),
    hnp.arrays(np.int64, 12, elements=st.integers(0, CLASSES - 1)),
)
def test_distances_are_those_of_the_definition(features, labels) -> None:
    expected = oracle(features.astype(np.float64), labels)
    np.testing.assert_allclose(measured(features, labels), expected, rtol=1e-4, atol=1e-3)


def test_one_class_has_nothing_between_and_an_unknown_label_is_seen() -> None:
    features = np.array([[0.0], [2.0]], np.float32)
    assert measured(features, np.array([1, 1])) == (1.0, 0.0)
    for label in (-1, CLASSES):
        within, between = measured(features, np.array([1, label]))
        assert np.isnan(within)
        assert between == 0.0


def test_all_pairs_are_taken_where_they_are_few() -> None:
    for count in (0, 1, 2, 10, 141):
        first, second = point_pairs(count)
        pairs = set(zip(first.tolist(), second.tolist(), strict=True))
        assert pairs == set(itertools.combinations(range(count), 2))
    first, second = point_pairs(5000)
    assert len(first) == 10_000
    assert (first != second).all()
    assert max(first.max(), second.max()) < 5000
    points = np.random.default_rng(1).normal(size=(1000, 3)).astype(np.float32)
    exact = np.mean([np.linalg.norm(points - point, axis=-1).sum() / 999 for point in points])
    assert float(mean_pair_distance(tf.constant(points))) == pytest.approx(exact, rel=0.02)


def test_known_labels_are_in_range_whatever_their_dtype() -> None:
    known, rows = known_labels(tf.constant([0, 2, 3, -1], tf.int32), 3)
    assert known.numpy().tolist() == [True, True, False, False]
    assert rows.numpy().tolist() == [0, 2, 0, 0]
    known, rows = known_labels(tf.constant([0, 255], tf.uint8), 300)
    assert known.numpy().all()
    assert rows.numpy().tolist() == [0, 255]
