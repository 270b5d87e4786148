"""Retrieval: distances and triplets match their definitions, metrics match a search in loops, and it learns."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes import retrieval as metric_learning
from hookline.recipes.data.digits import digits
from hookline.recipes.models.mlp import mlp
from hookline.recipes.retrieval import (
    MININGS,
    Retrieval,
    active_triplets,
    class_pairs,
    nearest_neighbors,
    pairwise_distances,
    retrieval,
    retrieval_metrics,
    triplet_loss,
)
from hookline.trainer.input.batches import EvaluationBatches, TrainingBatches
from hookline.trainer.input.data import ArraySource, Data, Split
from hookline.trainer.objective import SOFT_TARGETS
from hookline.trainer.recipe import Parts
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.networks import identity
from tests.support.refusals import assert_refused


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
def test_distances_match_definition(batch, size, squared):
    points = drawn(batch, size).astype(np.float64)
    expected = np.linalg.norm(points[:, None] - points[None], axis=-1) ** (2 if squared else 1)
    found = pairwise_distances(tf.constant(points, tf.float32), squared=squared)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_equal_and_near_embeddings_have_exact_distances_and_gradients():
    points = np.repeat(drawn(1, 128), 3, axis=0) / 11.0
    points[2, 5] += 1e-5
    found = pairwise_distances(tf.constant(points)).numpy()
    assert found[0, 1] == found[0, 0] == 0.0
    assert found[0, 2] == pytest.approx(1e-5, rel=0.01)  # from products it would be lost in rounding
    points, ones = np.repeat(drawn(1, 4), 3, axis=0), np.ones((3, 3), np.float32)
    for squared in (False, True):
        np.testing.assert_array_equal(gradient(points, ones, squared=squared), np.zeros((3, 4)))
    points = drawn(4, 3)
    points[1] = points[0]
    weights = np.random.default_rng(1).uniform(size=(4, 4)).astype(np.float32)
    apart = weights * (1 - np.eye(4, dtype=np.float32))
    apart[0, 1] = apart[1, 0] = 0.0
    np.testing.assert_allclose(gradient(points, weights), gradient(points, apart), rtol=1e-6)
    for distance in (1.0, 1e-3, 1e-9, 1e-15):  # the gradient has length 1 however near two embeddings are
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
        triplets = MININGS[mining](pairwise_distances(points), *class_pairs(targets, weights))
        loss = triplet_loss(triplets, margin, over_active=mining == "batch_all")
        mined = triplets.positive, triplets.negative, triplets.valid
        return *mined, active_triplets(triplets, margin), loss, tf.gradients(loss, points)[0]

    specs = [tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None])]
    return tf.function(compute, autograph=False, input_signature=specs)


@pytest.mark.parametrize(("mining", "margin"), [("batch_all", 0.5), ("batch_hard", 0.5), ("semi_hard", None)])
@given(batch=batches())
def test_triplets_and_loss_match_definition(mining, margin, batch):
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
def traced_metrics(recall_at):
    """Return the metrics as a function that is traced once, for any number of examples."""
    specs = [tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)]
    return tf.function(lambda *given: retrieval_metrics(*given, recall_at), autograph=False, input_signature=specs)


def found_metrics(embeddings, targets, order, recall_at):
    return {name: float(value) for name, value in traced_metrics(recall_at)(embeddings, targets, order).items()}


@st.composite
def splits(draw):
    size = draw(st.integers(1, 24))
    targets = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    chosen = draw(st.lists(st.integers(0, len(EXACT) - 1), min_size=size, max_size=size))
    order = draw(st.permutations(range(size)))
    return EXACT[chosen], np.array(targets, np.int64), 3 * np.array(order, np.int64)


@settings(max_examples=60)
@given(split=splits(), recall_at=st.sampled_from([(1, 5, 20), (1,), (3, 2), (40,)]))
def test_metrics_match_exhaustive_search_with_ties(split, recall_at):
    assert found_metrics(*split, recall_at) == pytest.approx(expected_metrics(*split, recall_at), abs=1e-6)


def test_metrics_match_exhaustive_search_over_several_blocks(monkeypatch):
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


def test_neighbors_come_from_other_half_nearest_first():
    angles = np.array([0.0, 0.1, 0.3, 0.2, 0.1, 0.1])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    half = np.array([0, 1, 1, 1, 0, 1])
    found = nearest_neighbors(points, half, [0, 1])
    assert [each.tolist() for each in found] == [[1, 5, 3, 2], [4, 0]]


USUAL = {"mining": "semi_hard", "margin": 0.2, "squared": False, "recall_at": (1, 5, 20)}


@pytest.fixture(scope="module")
def data() -> Data:
    return digits()


def batch_of(points, targets, **more):
    index = tf.range(len(targets), dtype=tf.int64)
    return {"inputs": tf.constant(points, tf.float32), "targets": tf.constant(targets), "index": index, **more}


def parts_of(data):
    def small(input_shape, classes):
        return mlp(input_shape, classes, units=[32])

    return Parts(data, small, lambda: keras.optimizers.Adam(0.005))


def test_padding_is_in_no_triplet_and_no_metric():
    generator = np.random.default_rng(0)
    points, targets = generator.normal(size=(9, 4)), generator.integers(0, 3, 9)
    padded = np.concatenate([points, points[:1], points[:1]]), np.concatenate([targets, [0, 1]])
    weights = tf.constant([1.0] * 9 + [0.0] * 2)
    objective = Retrieval(**USUAL | {"mining": "batch_all", "margin": 0.5})
    expected = objective.compute(identity, batch_of(points, targets))
    found = objective.compute(identity, batch_of(*padded, weights=weights))
    assert float(found.losses["triplet"]) == pytest.approx(float(expected.losses["triplet"]), rel=1e-5)
    for name in ("active_triplets", "positive_distance", "negative_distance"):
        assert float(found.metrics[name]) == pytest.approx(float(expected.metrics[name]), rel=1e-5), name
    np.testing.assert_array_equal(found.metrics["anchors"][:9], expected.metrics["anchors"])


def test_metrics_show_pair_distances_and_collapse():
    targets = [0, 0, 1, 1, 2]
    points = [[1, 0], [5, 0], [0, 0.1], [0, 1], [-3, 0]]  # only their directions count
    good = Retrieval(**USUAL).compute(identity, batch_of(points, targets))
    np.testing.assert_allclose(np.linalg.norm(good.outputs, axis=1), np.ones(5), rtol=1e-6)
    assert float(good.metrics["positive_distance"]) == 0.0
    pairs = [np.sqrt(2)] * 4 + [2.0] * 2 + [np.sqrt(2)] * 2
    assert float(good.metrics["negative_distance"]) == pytest.approx(np.mean(pairs), rel=1e-5)
    assert float(good.metrics["active_triplets"]) == float(good.losses["triplet"]) == 0.0
    np.testing.assert_array_equal(good.metrics["anchors"], [1, 1, 1, 1, 0])
    collapsed = Retrieval(**USUAL).compute(identity, batch_of([[3, 4]] * 5, targets))
    assert float(collapsed.metrics["positive_distance"]) == float(collapsed.metrics["negative_distance"]) == 0.0
    assert float(collapsed.metrics["active_triplets"]) == 1.0
    assert float(collapsed.losses["triplet"]) == pytest.approx(0.2)


def test_soft_margin_works_with_plain_and_squared_distances():
    batch = batch_of([[1, 0], [0, 1], [-1, 0]], [0, 0, 1])
    # Anchor 0: positive sqrt(2), negative 2. Anchor 1: sqrt(2) and sqrt(2).
    gaps = {False: np.array([np.sqrt(2) - 2, 0.0]), True: np.array([-2.0, 0.0])}
    for squared, gap in gaps.items():
        soft = Retrieval(mining="batch_hard", margin=None, squared=squared, recall_at=(1,)).compute(identity, batch)
        assert float(soft.losses["triplet"]) == pytest.approx(np.log1p(np.exp(gap)).mean(), rel=1e-5)
    assert float(soft.metrics["active_triplets"]) == 0.5


@pytest.mark.full
def test_evaluation_covers_whole_split_and_training_improves_metrics(data):
    recipe = retrieval(parts=parts_of(data), embedding_size=16)
    (network,) = recipe.networks
    network.optimizer.build(network.model.trainable_variables)
    trainer = Trainer(recipe.networks, recipe.objectives, [], seed=0)
    batches = [EvaluationBatches(data.validation, batch_size=size) for size in (180, 50)]  # 50 leaves 20 of padding
    evaluators = [Evaluator(trainer, each.batch, each.count) for each in batches]
    whole, cut = (evaluator.run(0) for evaluator in evaluators)
    for name in ("recall@1", "recall@5", "recall@20", "map@r", "r_precision", "unmatched"):
        assert cut[f"metric/{name}"] == pytest.approx(whole[f"metric/{name}"], abs=0.01), name
    assert 0.3 < whole["metric/map@r"] < whole["metric/r_precision"] < whole["metric/recall@1"] < 1.0
    assert "loss/triplet" in whole
    collected = evaluators[1].collected("retrieval")
    np.testing.assert_array_equal(collected["index"], data.validation.indices)
    np.testing.assert_array_equal(collected["target"], data.validation.source.labels[data.validation.indices])
    training = TrainingBatches(data.train, batch_size=60, seed=0, classes_per_batch=10)
    loop = ChunkLoop(trainer, training.batch, xla=False)
    assert loop.run(0, 80) == (80, [])
    after = evaluators[0].run(80)
    assert after["metric/map@r"] > whole["metric/map@r"] + 0.25
    assert after["metric/recall@1"] > 0.94
    measured = loop.accumulators.read()
    assert measured["metric/anchors"] == 1.0
    assert measured["metric/positive_distance"] < 0.8 * measured["metric/negative_distance"]


def test_invalid_options_and_data_are_refused(data):
    for options, message in (
        ({"mining": "semihard"}, "'semi_hard'"),
        ({"recall_at": [1, 500]}, "validation split has 180 images"),
    ):
        assert_refused(message, retrieval, **{"parts": parts_of(data), **options})
    mixed = {"inputs": tf.zeros([2, 4]), SOFT_TARGETS: tf.eye(2)}
    assert_refused("triplet loss needs one class", Retrieval(**USUAL).compute, identity, mixed)
    # 5 classes of 3: the halves, which are counted class by class, have 10 and 5.
    targets = np.tile(np.repeat(np.arange(5), 3), 4)
    source = ArraySource({"inputs": np.zeros((60, 4), np.float32), "targets": targets}, lambda rows: rows)
    parts = np.split(np.arange(60, dtype=np.int64), [30, 45])
    splits = [Split(name, source, part) for name, part in zip(("train", "validation", "test"), parts, strict=True)]
    small = Data("small", *splits, input_shape=(4,), classes=5)
    (network,) = retrieval(parts=parts_of(small), recall_at=[5], embedding_size=24).networks
    assert network.model.output_shape == (None, 24)
    assert_refused("at most 5", retrieval, parts=parts_of(small), recall_at=[6])
