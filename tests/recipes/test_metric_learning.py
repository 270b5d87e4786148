"""Metric learning: distances and triplets by the definition, neighbours against a search in loops."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes import metric_learning
from hookline.recipes.metric_learning import (
    MININGS,
    active_triplets,
    class_pairs,
    halves,
    mean_of,
    nearest_neighbours,
    pairwise_distances,
    retrieval_metrics,
    triplet_loss,
)


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
def test_distances_are_those_of_the_definition(batch, size, squared):
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
        assert float(mean_of(tf.constant(distances), chosen)) == pytest.approx(mean, rel=1e-5)


# Vectors of length 1 whose products are exact in float32: 0, 1/2 and 1 and their negatives. Most of them tie.
EXACT = np.array(
    [*np.eye(4), *-np.eye(4), *(np.array(signs) / 2.0 for signs in itertools.product((-1, 1), repeat=4))], np.float32
)


def expected_halves(targets, order):
    half, seen = np.zeros(len(targets), int), {}
    for place in np.argsort(order):
        half[place] = seen.get(targets[place], 0) % 2
        seen[targets[place]] = seen.get(targets[place], 0) + 1
    return half


def expected_metrics(embeddings, targets, order, recall_at):
    half = expected_halves(targets, order)
    rows = []
    for query in range(len(targets)):
        gallery = [each for each in range(len(targets)) if half[each] != half[query]]
        gallery.sort(key=lambda each: (-np.dot(embeddings[each], embeddings[query]), each))
        right = [targets[each] == targets[query] for each in gallery]
        relevant = sum(right)
        if relevant:
            precisions = [sum(right[: i + 1]) / (i + 1) for i in range(relevant) if right[i]]
            recalls = [float(any(right[:k])) for k in recall_at]
            rows.append([*recalls, sum(precisions) / relevant, sum(right[:relevant]) / relevant])
    names = [*(f"recall@{k}" for k in recall_at), "map@r", "r_precision"]
    means = np.mean(rows, axis=0) if rows else np.zeros(len(names))
    return {**dict(zip(names, means, strict=True)), "unmatched": len(targets) - len(rows)}


@functools.cache
def traced_metrics(recall_at, dtype=tf.int64):
    """Return the measures as a function that is traced once, for any number of examples."""

    def compute(embeddings, targets, order):
        return retrieval_metrics(embeddings, targets, order, recall_at)

    specs = [tf.TensorSpec([None, None]), tf.TensorSpec([None], dtype), tf.TensorSpec([None], tf.int64)]
    return tf.function(compute, autograph=False, input_signature=specs)


def found_metrics(embeddings, targets, order, recall_at):
    function = traced_metrics(recall_at, tf.as_dtype(targets.dtype))
    return {name: float(value) for name, value in function(embeddings, targets, order).items()}


@st.composite
def splits(draw):
    size = draw(st.integers(1, 24))
    targets = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    chosen = draw(st.lists(st.integers(0, len(EXACT) - 1), min_size=size, max_size=size))
    order = draw(st.permutations(range(size)))
    return EXACT[chosen], np.array(targets, np.int64), 3 * np.array(order, np.int64)


@settings(max_examples=60)
@given(split=splits(), recall_at=st.sampled_from([(1, 5, 20), (1,), (3, 2), (40,)]))
def test_measures_are_those_of_a_search_by_hand_with_ties(split, recall_at):
    assert found_metrics(*split, recall_at) == pytest.approx(expected_metrics(*split, recall_at), abs=1e-6)


def test_measures_are_those_of_a_search_by_hand_over_several_blocks(monkeypatch):
    monkeypatch.setattr(metric_learning, "QUERIES_AT_ONCE", 16)
    traced_metrics.cache_clear()
    generator = np.random.default_rng(0)
    for size in (16, 17, 100):
        vectors = generator.normal(size=(size, 8))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        split = vectors.astype(np.float32), generator.integers(0, 4, size), generator.permutation(size)
        expected = expected_metrics(*split, (1, 5))
        assert found_metrics(*split, (1, 5)) == pytest.approx(expected, abs=1e-6)
        assert 0.0 < expected["map@r"] < 1.0
    traced_metrics.cache_clear()


@settings(max_examples=40)
@given(split=splits())
def test_the_halves_share_every_class_evenly_and_follow_the_order(split):
    _, targets, order = split
    half = halves(tf.constant(targets), tf.constant(order)).numpy()
    np.testing.assert_array_equal(half, expected_halves(targets, order))
    for label in np.unique(targets):
        members = half[targets == label]
        assert 0 <= np.count_nonzero(members == 0) - np.count_nonzero(members == 1) <= 1


CASES = {
    "perfect": (
        EXACT[[0, 0, 1, 1]],
        [0, 0, 1, 1],
        {"recall@1": 1.0, "map@r": 1.0, "r_precision": 1.0, "unmatched": 0.0},
    ),
    "no query finds itself": (
        EXACT[[0, 1, 1, 0]],  # each query's nearest in the other half is of the other class
        [0, 0, 1, 1],
        {"recall@1": 0.0, "map@r": 0.0, "r_precision": 0.0, "unmatched": 0.0},
    ),
    "alone in its class": (
        EXACT[[0, 0, 1, 2, 2]],
        [0, 0, 1, 2, 2],
        {"recall@1": 1.0, "map@r": 1.0, "r_precision": 1.0, "unmatched": 1.0},
    ),
    "all alone": (EXACT[:3], [0, 1, 2], {"recall@1": 0.0, "map@r": 0.0, "r_precision": 0.0, "unmatched": 3.0}),
}


@pytest.mark.parametrize("case", CASES)
def test_small_splits_have_the_values_of_a_count_by_hand(case):
    embeddings, targets, expected = CASES[case]
    assert found_metrics(embeddings, np.array(targets), np.arange(len(targets)), (1,)) == expected


def test_neighbours_are_of_the_other_half_nearest_first():
    angles = np.array([0.0, 0.1, 0.3, 0.2, 0.1, 0.1])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    half = np.array([0, 1, 1, 1, 0, 1])
    found = nearest_neighbours(points, half, [0, 1], count=3)
    assert [each.tolist() for each in found] == [[1, 5, 3], [4, 0]]
