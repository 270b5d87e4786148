"""Class centers: the paper's update formula for any number of duplicates, and distances within and between classes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hookline.trainer.ops.centers import (
    center_change,
    center_sums,
    class_distances,
    known_labels,
    mean_pair_distance,
    point_pairs,
)

CLASSES, WIDTH, BATCH = 5, 3, 24
values = st.floats(-8.0, 8.0, width=32)
centers_of = hnp.arrays(np.float32, (CLASSES, WIDTH), elements=values)
features_of = hnp.arrays(np.float32, (BATCH, WIDTH), elements=values)
# Few classes for many examples, so that nearly every batch repeats some and misses others.
labels_of = st.integers(1, CLASSES).flatmap(lambda k: hnp.arrays(np.int64, BATCH, elements=st.integers(0, k - 1)))


def equation_4(centers, features, labels):
    """Return the change of equation 4 of the paper, one class and one example at a time, in double precision."""
    change = np.zeros(centers.shape)
    for j in range(len(centers)):
        total, count = np.zeros(centers.shape[1]), 0
        for x, y in zip(features.astype(np.float64), labels, strict=True):
            if y == j:
                total += centers[j].astype(np.float64) - x
                count += 1
        change[j] = total / (1 + count)
    return change


def changed(centers, features, labels, weights=None):
    return center_change(
        *center_sums(tf.constant(centers), tf.constant(features), tf.constant(labels), weights)
    ).numpy()


@settings(max_examples=40)
@given(centers_of, features_of, labels_of, hnp.arrays(bool, BATCH))
def test_update_follows_the_formula_of_the_paper(centers, features, labels, real):
    change = changed(centers, features, labels)
    np.testing.assert_allclose(change, equation_4(centers, features, labels), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(change[np.setdiff1d(np.arange(CLASSES), labels)], 0.0)
    padded = np.where(real[:, None], features, np.float32(np.nan))
    expected = equation_4(centers, features[real], labels[real])
    np.testing.assert_allclose(changed(centers, padded, labels, tf.constant(real)), expected, rtol=1e-5, atol=1e-4)


def class_distances_oracle(features, labels):
    means = {k: features[labels == k].mean(axis=0) for k in np.unique(labels)}
    within = np.mean([np.linalg.norm(x - means[y]) for x, y in zip(features, labels, strict=True)])
    pairs = [np.linalg.norm(a - b) for a, b in itertools.combinations(means.values(), 2)]
    return float(within), float(np.mean(pairs)) if pairs else 0.0


def measured(features, labels, classes=CLASSES):
    within, between = class_distances(tf.constant(features), tf.constant(labels), classes)
    return float(within), float(between)


@given(
    hnp.arrays(np.float32, (12, 2), elements=st.floats(-50.0, 50.0, width=32)),
    hnp.arrays(np.int64, 12, elements=st.integers(0, CLASSES - 1)),
)
def test_class_distances_match_the_definition(features, labels):
    expected = class_distances_oracle(features.astype(np.float64), labels)
    np.testing.assert_allclose(measured(features, labels), expected, rtol=1e-4, atol=1e-3)


def test_single_class_has_zero_distance_between_and_unknown_label_gives_nan():
    features = np.array([[0.0], [2.0]], np.float32)
    assert measured(features, np.array([1, 1])) == (1.0, 0.0)
    for label in (-1, CLASSES):
        within, between = measured(features, np.array([1, label]))
        assert np.isnan(within)
        assert between == 0.0


def test_point_pairs_are_complete_for_few_points_and_sampled_for_many():
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


def test_known_labels_are_in_range_for_any_dtype():
    known, rows = known_labels(tf.constant([0, 2, 3, -1], tf.int32), 3)
    assert known.numpy().tolist() == [True, True, False, False]
    assert rows.numpy().tolist() == [0, 2, 0, 0]
    known, rows = known_labels(tf.constant([0, 255], tf.uint8), 300)
    assert known.numpy().all()
    assert rows.numpy().tolist() == [0, 255]
