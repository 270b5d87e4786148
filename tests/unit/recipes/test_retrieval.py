"""Retrieval: the objective in training and evaluation, its builder, and that it learns."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from recipes.data.digits import digits
from recipes.models.mlp import mlp
from recipes.retrieval import Retrieval, retrieval
from trainer.errors import UserError
from trainer.input.batches import EvaluationBatches, TrainingBatches
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.network import Network
from trainer.recipe import Parts
from trainer.step.evaluate import Evaluator
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer


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


def test_the_loss_is_computed_in_float32_also_where_the_network_is_not():
    batch = batch_of(np.random.default_rng(0).normal(size=(6, 4)), [0, 0, 1, 1, 2, 2])
    output = Retrieval().compute(lambda _, inputs: tf.cast(inputs, tf.bfloat16), batch)
    tensors = [output.outputs, *output.losses.values(), *output.metrics.values(), output.collected["embedding"]]
    assert {tensor.dtype for tensor in tensors} == {tf.float32}


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


def test_the_metrics_say_how_far_pairs_are_and_whether_the_embeddings_collapse():
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


def test_batches_without_a_triplet_leave_the_network_as_it_is(data):
    network, _, trainer = assembled(data)
    apart = {"inputs": tf.random.normal([4, 8, 8, 1]), "targets": tf.range(4), "index": tf.range(4, dtype=tf.int64)}
    start = {name: variable.numpy() for name, variable in network.trainable_variables.items()}
    loop = ChunkLoop(trainer, lambda step: apart, xla=False)
    loop.run(0, 3)
    for name, variable in network.trainable_variables.items():
        np.testing.assert_array_equal(variable.numpy(), start[name])
    assert loop.accumulators.read()["loss/triplet"] == loop.accumulators.read()["metric/anchors"] == 0.0


def test_without_balanced_batches_mining_takes_what_comes(data):
    _, _, trainer = assembled(data)
    loop = ChunkLoop(trainer, TrainingBatches(data.train, batch_size=8, seed=0).batch, xla=False)
    loop.run(0, 20)
    measured = loop.accumulators.read()
    assert 0.2 < measured["metric/anchors"] < 0.9
    assert measured["loss/triplet"] > 0.0


def test_the_picture_shows_queries_with_neighbours_of_the_other_half(data):
    _, objective, trainer = assembled(data)
    assert objective.pictures({}, lambda positions: pytest.fail("nothing is evaluated yet")) == {}
    evaluator = evaluator_of(trainer, data.validation)
    evaluator.run(0)
    asked = []

    def examples(positions):
        asked.append(list(positions))
        rows = tf.constant(data.validation.indices[positions])
        return {name: tensor.numpy() for name, tensor in data.validation.source.gather(rows).items()}

    (sheet,) = objective.pictures(evaluator.collected("retrieval"), examples).values()
    assert sheet.ndim == 3
    assert sheet.shape[-1] == 3
    assert (sheet >= 0.0).all()
    assert (sheet <= 1.0).all()
    *neighbours, queries = [each for each in asked if each != [0]]
    assert len(queries) == len(neighbours) == 8
    assert all(len(found) == 5 and query not in found for query, found in zip(queries, neighbours, strict=True))


def test_inputs_that_are_no_images_give_no_picture():
    collected = {"embedding": np.eye(2), "target": np.arange(2), "index": np.arange(2)}
    assert Retrieval().pictures(collected, lambda positions: {"inputs": np.zeros((len(positions), 3))}) == {}


def test_the_network_has_an_output_for_each_dimension(data):
    recipe = retrieval(parts=parts_of(data), embedding_size=24)
    (network,) = recipe.networks
    assert isinstance(network, Network)
    assert network.model.output_shape == (None, 24)
    wrong = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(24, 3)], name="maps")
    with pytest.raises(UserError, match=r"'maps' returns the shape .*Expected embeddings \[batch, 24\]"):
        retrieval(parts=parts_of(data, lambda input_shape, classes: wrong), embedding_size=24)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embedding_size": 1}, "embedding_size=1 received. Expected a whole number of at least 2"),
        ({"mining": "semihard"}, "Unknown mining 'semihard'. Did you mean 'semi_hard'"),
        ({"margin": 0.0}, "margin=0.0 received. Expected a number above 0, such as 0.2; null is the soft margin"),
        ({"margin": float("inf")}, "margin=inf received"),
        ({"margin": float("nan")}, "margin=nan received"),
        ({"recall_at": []}, r"recall_at=\[\] received. Expected different whole numbers above 0"),
        ({"recall_at": [1, 0]}, r"recall_at=\[1, 0\] received"),
        ({"recall_at": [1, 1]}, r"recall_at=\[1, 1\] received"),
        ({"recall_at": [1.5]}, r"recall_at=\[1.5\] received"),
        (
            {"recall_at": [1, 500]},
            "The validation split has 180 images, and queries are searched in halves of them: exp",
        ),
    ],
)
def test_a_wrong_option_is_one_clear_line(data, options, message):
    with pytest.raises(UserError, match=message) as error:
        retrieval(parts=parts_of(data), **options)
    assert "\n" not in str(error.value)


def test_the_gallery_is_counted_class_by_class():
    # 5 classes of 3: the halves hold 10 and 5.
    labels = np.repeat(np.arange(5), 3)
    source = ArraySource({"inputs": np.zeros((60, 4), np.float32), "targets": np.tile(labels, 4)}, lambda rows: rows)
    rows = np.arange(60, dtype=np.int64)
    splits = [
        Split(name, source, part)
        for name, part in zip(("train", "validation", "test"), (rows[:30], rows[30:45], rows[45:]), strict=True)
    ]
    data = Data("small", *splits, input_shape=(4,), classes=5)
    retrieval(parts=parts_of(data), recall_at=[5])
    with pytest.raises(UserError, match="split has 15 images.* expected at most 5, the size of the smaller half"):
        retrieval(parts=parts_of(data), recall_at=[6])


def test_the_projector_gets_embeddings_with_their_classes_and_thumbnails():
    def examples(positions):
        return {"inputs": np.array(positions, np.float32)[:, None, None, None] * np.ones((1, 64, 48, 1), np.float32)}

    vectors, targets = np.arange(3000.0).reshape(1500, 2), np.arange(1500) % 10
    collected = {"embedding": vectors, "target": targets, "index": np.arange(1500)}
    (embedding,) = Retrieval().embeddings(collected, examples).values()
    rows = (embedding.vectors[:, 0] / 2.0).astype(int)
    assert len(rows) == 1000
    assert (rows[0], rows[-1]) == (0, 1499)  # spread over the split, whose classes may come one after another
    np.testing.assert_array_equal(embedding.labels["class"], targets[rows])
    assert embedding.images.shape == (1000, 32, 24, 1)
    np.testing.assert_array_equal(embedding.images[:, 0, 0, 0], rows)


def test_embeddings_of_what_is_no_image_have_no_thumbnails_and_nothing_comes_before_an_evaluation():
    collected = {"embedding": np.eye(2), "target": np.arange(2), "index": np.arange(2)}
    (embedding,) = Retrieval().embeddings(collected, lambda rows: {"inputs": np.zeros((len(rows), 3))}).values()
    assert embedding.images is None
    np.testing.assert_array_equal(embedding.vectors, np.eye(2))
    assert Retrieval().embeddings({}, lambda rows: pytest.fail("nothing is evaluated yet")) == {}
