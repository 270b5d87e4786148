"""Retrieval: the objective in training and evaluation, its builder, and that it learns."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data.digits import digits
from hookline.recipes.models.mlp import mlp
from hookline.recipes.retrieval import Retrieval, retrieval
from hookline.trainer.input.batches import EvaluationBatches, TrainingBatches
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.recipe import Parts
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.refusals import assert_refused


@pytest.fixture(scope="module")
def data() -> Data:
    return digits()


def identity(name, inputs):
    """Stand for a network that returns its inputs."""
    assert name == "model"
    return inputs


def batch_of(points, targets, **more):
    index = tf.range(len(targets), dtype=tf.int64)
    return {"inputs": tf.constant(points, tf.float32), "targets": tf.constant(targets), "index": index, **more}


def parts_of(data, build_model=None, build_optimizer=None):
    def small(input_shape, classes):
        return mlp(input_shape, classes, units=[32])

    return Parts(data, build_model or small, build_optimizer or (lambda: keras.optimizers.Adam(0.005)))


def assembled(data, **options):
    """Return network, objective and trainer of the recipe on some data."""
    recipe = retrieval(parts=parts_of(data), **{"embedding_size": 16, **options})
    (network,) = recipe.networks
    network.optimizer.build(network.model.trainable_variables)
    return network, recipe.objectives[0], Trainer(recipe.networks, recipe.objectives, [], seed=0)


def evaluator_of(trainer, split, size=64):
    batches = EvaluationBatches(split, batch_size=size)
    return Evaluator(trainer, batches.batch, batches.count)


def test_embeddings_count_by_their_direction_alone():
    points, targets = np.random.default_rng(0).normal(size=(8, 4)), [0, 0, 1, 1, 2, 2, 0, 1]
    lengths = np.array([1, 10, 0.1, 5, 1, 100, 2, 3])[:, None]
    objective = Retrieval(margin=0.5)
    plain, scaled = (objective.compute(identity, batch_of(each, targets)) for each in (points, points * lengths))
    np.testing.assert_allclose(np.linalg.norm(plain.outputs, axis=1), np.ones(8), rtol=1e-6)
    np.testing.assert_allclose(plain.outputs, scaled.outputs, atol=1e-6)
    assert float(plain.losses["triplet"]) == pytest.approx(float(scaled.losses["triplet"]), abs=1e-6)
    assert float(plain.losses["triplet"]) > 0.0


@pytest.mark.parametrize("mining", ["batch_hard", "semi_hard", "batch_all"])
def test_padding_is_in_no_triplet_and_no_metric(mining):
    generator = np.random.default_rng(0)
    points, targets = generator.normal(size=(9, 4)), generator.integers(0, 3, 9)
    padded = np.concatenate([points, points[:1], points[:1]]), np.concatenate([targets, [0, 1]])
    weights = tf.constant([1.0] * 9 + [0.0] * 2)
    objective = Retrieval(mining=mining, margin=0.5)
    expected = objective.compute(identity, batch_of(points, targets))
    found = objective.compute(identity, batch_of(*padded, weights=weights))
    assert float(found.losses["triplet"]) == pytest.approx(float(expected.losses["triplet"]), rel=1e-5)
    for name in ("active_triplets", "positive_distance", "negative_distance"):
        assert float(found.metrics[name]) == pytest.approx(float(expected.metrics[name]), rel=1e-5), name
    np.testing.assert_array_equal(found.metrics["anchors"][:9], expected.metrics["anchors"])


def test_the_metrics_say_how_far_pairs_are_and_whether_all_collapse():
    targets = [0, 0, 1, 1, 2]
    good = Retrieval().compute(identity, batch_of([[1, 0], [1, 0], [0, 1], [0, 1], [-1, 0]], targets))
    assert float(good.metrics["positive_distance"]) == 0.0
    pairs = [np.sqrt(2)] * 4 + [2.0] * 2 + [np.sqrt(2)] * 2
    assert float(good.metrics["negative_distance"]) == pytest.approx(np.mean(pairs), rel=1e-5)
    assert float(good.metrics["active_triplets"]) == float(good.losses["triplet"]) == 0.0
    np.testing.assert_array_equal(good.metrics["anchors"], [1, 1, 1, 1, 0])
    collapsed = Retrieval().compute(identity, batch_of([[3, 4]] * 5, targets))
    assert float(collapsed.metrics["positive_distance"]) == float(collapsed.metrics["negative_distance"]) == 0.0
    assert float(collapsed.metrics["active_triplets"]) == 1.0
    assert float(collapsed.losses["triplet"]) == pytest.approx(0.2)


def test_squared_distances_and_the_soft_margin_are_taken():
    batch = batch_of([[1, 0], [0, 1], [-1, 0]], [0, 0, 1])
    # Anchor 0: positive sqrt(2), negative 2. Anchor 1: sqrt(2) and sqrt(2).
    gaps = {False: np.array([np.sqrt(2) - 2, 0.0]), True: np.array([-2.0, 0.0])}
    for squared, gap in gaps.items():
        soft = Retrieval(mining="batch_hard", margin=None, squared=squared).compute(identity, batch)
        assert float(soft.losses["triplet"]) == pytest.approx(np.log1p(np.exp(gap)).mean(), rel=1e-5)
        hard = Retrieval(mining="batch_hard", margin=1.0, squared=squared).compute(identity, batch)
        assert float(hard.losses["triplet"]) == pytest.approx(np.maximum(gap + 1.0, 0.0).mean(), rel=1e-5)
    assert float(soft.metrics["active_triplets"]) == 0.5


def test_an_evaluation_is_of_the_split_as_a_whole_whatever_the_batches(data):
    _, _, trainer = assembled(data)
    evaluators = [evaluator_of(trainer, data.validation, size) for size in (180, 50)]  # 50 leaves 20 of padding
    whole, cut = (evaluator.run(0) for evaluator in evaluators)
    names = ["recall@1", "recall@5", "recall@20", "map@r", "r_precision", "unmatched"]
    for name in names:
        assert cut[f"metric/{name}"] == pytest.approx(whole[f"metric/{name}"], abs=0.01), name
    assert 0.3 < whole["metric/map@r"] < whole["metric/r_precision"] < whole["metric/recall@1"] < 1.0
    assert "loss/triplet" in whole
    collected = evaluators[1].collected("retrieval")
    np.testing.assert_array_equal(collected["index"], data.validation.indices)
    np.testing.assert_array_equal(collected["target"], data.validation.source.labels[data.validation.indices])


def test_training_brings_the_digits_of_a_class_together(data):
    network, _, trainer = assembled(data)
    batches = TrainingBatches(data.train, batch_size=60, seed=0, classes_per_batch=10)
    loop, evaluator = ChunkLoop(trainer, batches.batch, xla=False), evaluator_of(trainer, data.validation)
    before = evaluator.run(0)
    start = {name: variable.numpy() for name, variable in network.trainable_variables.items()}
    assert loop.run(0, 80) == (80, [])
    after = evaluator.run(80)
    assert after["metric/map@r"] > before["metric/map@r"] + 0.25
    assert after["metric/recall@1"] > 0.94
    assert not any(np.array_equal(start[name], each.numpy()) for name, each in network.trainable_variables.items())
    measured = loop.accumulators.read()
    assert measured["metric/anchors"] == 1.0
    assert measured["metric/positive_distance"] < 0.8 * measured["metric/negative_distance"]


def test_a_wrong_option_is_one_clear_line(data):
    wrong = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(24, 3)], name="maps")
    for options, message in (
        ({"mining": "semihard"}, "'semi_hard'"),
        ({"margin": float("nan")}, "margin=nan"),
        ({"recall_at": [1, 1]}, r"recall_at=\[1, 1\]"),
        ({"recall_at": [1, 500]}, "validation split has 180 images"),
        ({"parts": parts_of(data, lambda input_shape, classes: wrong)}, r"'maps' .*\[batch, 64\]"),
    ):
        assert_refused(message, retrieval, **{"parts": parts_of(data), **options})
    # 5 classes of 3: the halves, which are counted class by class, hold 10 and 5.
    targets = np.tile(np.repeat(np.arange(5), 3), 4)
    source = ArraySource({"inputs": np.zeros((60, 4), np.float32), "targets": targets}, lambda rows: rows)
    parts = np.split(np.arange(60, dtype=np.int64), [30, 45])
    splits = [Split(name, source, part) for name, part in zip(("train", "validation", "test"), parts, strict=True)]
    small = Data("small", *splits, input_shape=(4,), classes=5)
    (network,) = retrieval(parts=parts_of(small), recall_at=[5], embedding_size=24).networks
    assert network.model.output_shape == (None, 24)
    assert_refused("at most 5", retrieval, parts=parts_of(small), recall_at=[6])
