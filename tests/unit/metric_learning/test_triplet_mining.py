"""Triplets of a batch, against the definitions spelled out in loops."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes.metric_learning.triplet_loss import (
    MININGS,
    active_triplets,
    class_pairs,
    mean_distance,
    pairwise_distances,
    triplet_loss,
)


@st.composite
def batches(draw):
    """Points on a small grid, so that many distances tie, some points coincide, and all are exact in float32."""
    size = draw(st.integers(1, 8))
    points = draw(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=size, max_size=size))
    targets = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    weights = draw(st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.0]), min_size=size, max_size=size))
    return np.array(points, np.float32), np.array(targets, np.int64), np.array(weights, np.float32)


def partners(anchor, targets, weights):
    """Return positives and negatives of an anchor, as lists of positions; none for padding."""
    others = [each for each in range(len(targets)) if weights[each] and weights[anchor]]
    positives = [each for each in others if targets[each] == targets[anchor] and each != anchor]
    return positives, [each for each in others if targets[each] != targets[anchor]]


def expected_triplets(mining, distances, targets, weights):
    """Return (distance to the positive, distance to the negative) of every triplet that the mining chooses."""
    found = []
    for anchor, row in enumerate(distances):
        positives, negatives = partners(anchor, targets, weights)
        if not positives or not negatives:
            continue
        if mining == "batch_hard":
            found.append((max(row[each] for each in positives), min(row[each] for each in negatives)))
        for positive in positives if mining != "batch_hard" else ():
            if mining == "batch_all":
                found += [(row[positive], row[negative]) for negative in negatives]
                continue
            farther = [row[negative] for negative in negatives if row[negative] > row[positive]]
            found.append((row[positive], min(farther) if farther else max(row[each] for each in negatives)))
    return found


@functools.cache
def traced(mining, margin):
    """Return a function of points, targets and weights, traced once for batches of any size."""

    def compute(points, targets, weights):
        triplets = MININGS[mining](pairwise_distances(points), class_pairs(targets, weights))
        loss = triplet_loss(triplets, margin, over_active=mining == "batch_all")
        mined = triplets.positive, triplets.negative, triplets.valid
        return *mined, active_triplets(triplets, margin), loss, tf.gradients(loss, points)[0]

    specs = [tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None])]
    return tf.function(compute, autograph=False, input_signature=specs)


@pytest.mark.parametrize("margin", [0.5, None])
@pytest.mark.parametrize("mining", MININGS)
@given(batch=batches())
def test_triplets_and_loss_are_those_of_the_definition(mining, margin, batch):
    points, targets, weights = batch
    distances = np.sqrt(np.square(points[:, None] - points[None]).sum(-1))
    expected = np.array(expected_triplets(mining, distances, targets, weights), np.float32).reshape(-1, 2)
    outputs = [tensor.numpy() for tensor in traced(mining, margin)(points, targets, weights)]
    positive, negative, valid, active, loss, gradient = outputs
    found = np.stack([positive[valid], negative[valid]], axis=-1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    gaps = found[:, 0] - found[:, 1]
    losses = np.logaddexp(0.0, gaps) if margin is None else np.maximum(gaps + np.float32(margin), 0.0)
    counted = losses[losses > 0] if mining == "batch_all" else losses
    assert float(loss) == pytest.approx(counted.mean() if counted.size else 0.0, abs=1e-5)
    assert np.count_nonzero(active) == np.count_nonzero(gaps >= 0 if margin is None else losses > 0)
    assert np.isfinite(gradient).all()
    if not np.any(losses):
        np.testing.assert_array_equal(gradient, np.zeros_like(points))


@settings(max_examples=30)
@given(batch=batches())
def test_pairs_and_their_mean_distance(batch):
    points, targets, weights = batch
    distances = np.sqrt(np.square(points[:, None] - points[None]).sum(-1))
    pairs = class_pairs(tf.constant(targets), tf.constant(weights))
    for kind, chosen in (("positive", pairs.positive), ("negative", pairs.negative)):
        expected = np.zeros((len(targets),) * 2, bool)
        for anchor in range(len(targets)):
            expected[anchor, partners(anchor, targets, weights)[kind == "negative"]] = True
        np.testing.assert_array_equal(chosen, expected)
        mean = distances[expected].mean() if expected.any() else 0.0
        assert float(mean_distance(tf.constant(distances), chosen)) == pytest.approx(mean, rel=1e-5)
