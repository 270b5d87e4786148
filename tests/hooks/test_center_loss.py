"""Center loss in the traced step: the loss and its weight, how and when the centers move, evaluations."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.center_loss import CenterLoss, find_features, plane_axes
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.hooked import hooked
from tests.support.refusals import assert_refused
from tests.support.toy import BATCH, CLASSES, FEATURES, ToyObjective, build_context, network_of, toy_arrays, toy_batch
from tests.trainer.ops.test_centers import equation_4


def feature_network(optimizer: keras.optimizers.Optimizer | None = None, *, width: int = 2) -> Network:
    """Return a dense layer "features" and a dense layer "logits"; the features depend only on their kernel."""
    inputs = keras.Input((FEATURES,))
    features = keras.layers.Dense(width, use_bias=False, name="features")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(features))
    return network_of(model, optimizer)


def center_loop(network: Network, **options: Any) -> tuple[CenterLoss, ChunkLoop]:
    """Return the hook, with a full weight of 0.5 from the first step on, and a traced and audited loop."""
    kept = {key: options.pop(key) for key in ("batch", "xla", "objective", "accumulation_steps") if key in options}
    hook = CenterLoss(**{"weight": 0.5, "warm_up_epochs": 0.0, **options})
    return hook, hooked(network, hook, **kept)


def read_batch(step: int) -> dict[str, np.ndarray]:
    """Return the toy batch of a step as arrays."""
    return {name: tensor.numpy() for name, tensor in toy_batch(tf.constant(step, tf.int64)).items()}


def features_of(network: Network, batch: "Batch | dict[str, np.ndarray]") -> np.ndarray:
    """Return the output of the layer "features" for a batch, with the current weights."""
    return np.asarray(batch["inputs"] @ network.variables["features/kernel"].numpy())


def centers_of(hook: CenterLoss) -> np.ndarray:
    return hook.declare().state["centers"].numpy()


def start_at(hook: CenterLoss, seed: int = 3) -> np.ndarray:
    centers = np.random.default_rng(seed).normal(size=centers_of(hook).shape).astype(np.float32)
    hook.declare().state["centers"].assign(centers)
    return centers


def test_loss_uses_the_old_centers_which_then_move_by_equation_4() -> None:
    network = feature_network()
    hook, loop = center_loop(network, weight=0.3, alpha=0.7, xla=True)
    centers, batch = start_at(hook), read_batch(0)
    features = features_of(network, batch)
    own = centers[batch["targets"]]
    loop.run(0, 1)
    reported = loop.accumulators.read()
    squared = np.square(features - own).sum(axis=-1)
    assert reported["loss/center"] == pytest.approx(0.3 / 2 * squared.mean(), rel=1e-5)
    assert reported["loss/total"] == pytest.approx(reported["loss/cross_entropy"] + reported["loss/center"], rel=1e-6)
    assert reported["center/distance"] == pytest.approx(np.sqrt(squared).mean(), rel=1e-5)
    after = centers - 0.7 * equation_4(centers, features, batch["targets"])
    np.testing.assert_allclose(centers_of(hook), after, rtol=1e-4, atol=1e-5)
    pairs = [np.linalg.norm(after[i] - after[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert reported["center/between"] == pytest.approx(np.mean(pairs), rel=1e-4)
    assert reported["center/ratio"] == pytest.approx(reported["center/distance"] / np.mean(pairs), rel=1e-4)
    assert reported["center/length"] == pytest.approx(np.linalg.norm(after, axis=-1).mean(), rel=1e-4)


@pytest.mark.parametrize(("name", "accumulation_steps"), [("weights", 1), ("sample_weights", 4)])
def test_center_updates_respect_example_weights(name: str, accumulation_steps: int) -> None:
    """A weight of 2 counts an example twice; a weight of 0 is padding."""
    counts = np.arange(BATCH) % 3

    def weighted(step: tf.Tensor) -> dict[str, tf.Tensor]:
        return {**toy_batch(step), name: tf.constant(counts, tf.float32)}

    network = feature_network()
    hook, loop = center_loop(network, alpha=0.7, batch=weighted, accumulation_steps=accumulation_steps)
    centers, batch = start_at(hook), read_batch(0)
    features = np.repeat(features_of(network, batch), counts, axis=0)
    after = centers - 0.7 * equation_4(centers, features, np.repeat(batch["targets"], counts))
    loop.run(0, 1)
    np.testing.assert_allclose(centers_of(hook), after, rtol=1e-4, atol=1e-5)


def test_loss_weight_is_zero_then_rises_then_stays_constant() -> None:
    network = feature_network(keras.optimizers.SGD(0.0))
    hook, loop = center_loop(network, weight=0.8, begin_epoch=0.5, warm_up_epochs=1.0)  # 4 steps per epoch
    assert hook.declare().best_from_step == 6
    for step, weight in enumerate([0.0, 0.0, 0.16, 0.32, 0.48, 0.64, 0.8, 0.8, 0.8]):
        batch = read_batch(step)
        squared = np.square(features_of(network, batch) - centers_of(hook)[batch["targets"]]).sum(axis=-1).mean()
        loop.accumulators.reset()
        loop.run(step, 1)
        assert loop.accumulators.read()["loss/center"] == pytest.approx(0.5 * weight * squared, rel=1e-4)
        assert np.abs(centers_of(hook)).min() > 0.0  # they move from the first step on
    assert center_loop(feature_network(), weight=0.0, begin_epoch=3.0)[0].declare().best_from_step == 0


def test_target_outside_the_classes_holds_the_step_back() -> None:
    class Ignoring(ToyObjective):
        def compute(self, forward, batch):
            return super().compute(forward, {**batch, "targets": tf.clip_by_value(batch["targets"], 0, 2)})

    def batch(step):
        given = toy_batch(step)
        label = tf.where(step == 2, -1, tf.where(step == 4, CLASSES, 0))
        return {**given, "targets": tf.concat([[tf.cast(label, tf.int64)], given["targets"][1:]], axis=0)}

    hook, loop = center_loop(feature_network(), batch=batch, objective=Ignoring())
    assert loop.run(0, 2) == (2, [])
    for wrong in (2, 4):
        before = centers_of(hook)
        assert loop.run(wrong, 5) == (wrong, ["center_loss: a target outside [0, 3)"])
        np.testing.assert_array_equal(centers_of(hook), before)


def test_unknown_classes_and_unsuitable_targets_are_refused() -> None:
    network, hook = feature_network(), CenterLoss()
    network.taps |= hook.request_taps(network.model)
    assert_refused("the number of classes", hook.build, build_context(network))

    class Own(ToyObjective):
        def compute(self, forward, batch):
            return super().compute(forward, {**batch, "targets": tf.zeros([BATCH], tf.int64)})

    for targets, word in ((tf.zeros([BATCH]), "integers"), (tf.zeros([8], tf.int64), "labels of 8")):
        wrong = {"batch": lambda step, t=targets: {**toy_batch(step), "targets": t}, "objective": Own()}
        assert_refused(word, center_loop, feature_network(), **wrong)


# What it reports: evaluations, features, and the plane in which they are shown.


def evaluate(trainer: Trainer) -> dict[str, float]:
    """Return what an evaluation of 24 examples in batches of 16 reports."""
    inputs, targets = toy_arrays()
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    batches = EvaluationBatches(Split("validation", source, np.arange(24, dtype=np.int64)), batch_size=16)
    return Evaluator(trainer, batches.batch, batches.count).run(100)


def test_evaluation_reports_loss_and_distances_without_padding() -> None:
    network = feature_network()
    hook, loop = center_loop(network, weight=0.2)
    centers = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    hook.declare().state["centers"].assign(centers)
    before = network.model.get_weights()
    values = evaluate(loop.trainer)
    np.testing.assert_equal(network.model.get_weights(), before)
    inputs, targets = (each[:24] for each in toy_arrays())
    features = features_of(network, {"inputs": inputs})
    loss = 0.1 * np.square(features - centers[targets]).sum(axis=-1).mean()
    assert values["loss/center"] == pytest.approx(loss, rel=1e-5)
    means = np.stack([features[targets == label].mean(axis=0) for label in range(3)])
    within = np.linalg.norm(features - means[targets], axis=-1).mean()
    between = np.mean([np.linalg.norm(means[i] - means[j]) for i, j in ((0, 1), (0, 2), (1, 2))])
    assert values["metric/center_within"] == pytest.approx(within, rel=1e-5)
    assert values["metric/center_between"] == pytest.approx(between, rel=1e-5)
    assert values["metric/center_ratio"] == pytest.approx(within / between, rel=1e-5)
    np.testing.assert_array_equal(hook.declare().state["centers"].numpy(), centers)
    hook._centers = tf.Variable(tf.zeros([2, 2]))  # the data has a third class
    values = evaluate(loop.trainer)
    assert np.isnan(values["loss/center"])
    assert np.isfinite(values["metric/accuracy"])


def image_model(*, nested: bool = False) -> keras.Model:
    inputs = keras.Input((4, 4, 1), name="image")
    x = keras.layers.Conv2D(3, 3, name="conv")(inputs)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(5, name="features")(x)
    head = keras.layers.Dense(2, name="logits")
    if nested:
        head = keras.Sequential([keras.Input((5,)), head], name="head")
    x = keras.layers.BatchNormalization(name="norm")(head(x))
    return keras.Model(inputs, x, name="net")


INPUTS = np.random.default_rng(0).normal(size=(2, 4, 4, 1)).astype(np.float32)


def test_features_are_the_last_dense_input_or_a_named_layer_output() -> None:
    model = image_model()
    for pattern, name in ((None, "features"), ("flat*", "flatten"), ("logits", "logits")):
        expected = keras.Model(model.inputs, model.get_layer(name).output)(tf.constant(INPUTS))
        found = keras.Model(model.inputs, find_features(model, pattern))(tf.constant(INPUTS))
        np.testing.assert_array_equal(found, expected)


def test_unsuitable_feature_layers_are_refused() -> None:
    inputs = keras.Input((4, 4, 1))
    no_dense = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 3)(inputs)))
    for model, pattern, word in (
        (image_model(nested=True), "head/logits", "logits"),
        (image_model(), "conv", "2, 2, 3"),
        (image_model(), "f*", "flatten, features"),
        (image_model(), "featres", "featres"),
        (no_dense, None, "dense"),
    ):
        assert_refused(word, find_features, model, pattern)


def test_plane_axes_are_the_directions_of_largest_variance() -> None:
    generator = np.random.default_rng(1)
    flat = generator.normal(size=(200, 2)) * [5.0, 2.0]
    directions = np.linalg.qr(generator.normal(size=(6, 6)))[0][:2]
    points = flat @ directions + 0.1 * generator.normal(size=(200, 6)) + 30.0
    axes, share = plane_axes(points)
    covariance = np.cov(points.T)
    largest = np.sort(np.linalg.eigvalsh(covariance))[::-1]
    np.testing.assert_allclose((points @ axes).var(axis=0, ddof=1), largest[:2], rtol=1e-6)
    assert share == pytest.approx(largest[:2].sum() / largest.sum())
