"""Weights of examples: steps, reports and evaluations are those of Keras with sample_weight and weighted_metrics."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.network import Network
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.replicas import assert_same_run, trained
from tests.support.toy import BATCH, CLASSES, FEATURES, SIZE, ToyObjective, toy_arrays

STEPS = 6
RATE = 0.1


def weights() -> np.ndarray:
    """Return sample weights [64]: some 0, and all of the micro batch of rows 4 to 7."""
    found = np.random.default_rng(5).gamma(0.5, size=SIZE).round(2)
    found[4:8] = found[20] = 0.0
    return found.astype(np.float32)


def source() -> ArraySource:
    inputs, targets = toy_arrays()
    return ArraySource({"inputs": inputs, "targets": targets, SAMPLE_WEIGHTS: weights()}, transform=dict)


def weighted_batch(step: tf.Tensor) -> Batch:
    return source().gather((step * BATCH + tf.range(BATCH, dtype=tf.int64)) % SIZE)


def plain_network() -> Network:
    """Return a network without batch norm, whose micro batches and replicas are exact."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "tanh", name="hidden"), keras.layers.Dense(CLASSES, name="logits")]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers], name="plain")
    network = Network("model", model, keras.optimizers.SGD(RATE, name="sgd"))
    network.optimizer.build(network.model.trainable_variables)
    return network


class Weighable(ToyObjective):
    """A toy objective whose loss is of a class."""

    class_losses = ("cross_entropy",)


def loop_with(objective=Weighable, batch=weighted_batch, **settings) -> ChunkLoop:
    return ChunkLoop(Trainer([plain_network()], [objective()], [], seed=0, **settings), batch, xla=False)


def keras_twin() -> keras.Model:
    model = plain_network().model
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE), loss, weighted_metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def fitted() -> tuple[keras.Model, dict[str, float]]:
    """Return what Keras trains of the same batches, and what it reports of the epoch."""
    model, (inputs, targets) = keras_twin(), toy_arrays()
    rows = np.arange(STEPS * BATCH) % SIZE
    history = model.fit(
        inputs[rows], targets[rows], sample_weight=weights()[rows], batch_size=BATCH, shuffle=False, verbose=0
    )
    return model, {name: values[0] for name, values in history.history.items()}


@pytest.mark.parametrize("accumulation_steps", [1, 4])
def test_steps_and_their_report_are_those_of_keras_fit(fitted, accumulation_steps: int) -> None:
    loop = loop_with(accumulation_steps=accumulation_steps)
    loop.run(0, STEPS)
    model, history = fitted
    for ours, theirs in zip(loop.trainer.networks["model"].model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    reported = loop.accumulators.read()
    assert reported["loss/total"] == pytest.approx(history["loss"], rel=1e-5)
    assert reported["metric/accuracy"] == pytest.approx(history["accuracy"], rel=1e-5)


def test_weights_of_classes_multiply_those_of_examples() -> None:
    by_class = np.array([3.0, 0.5, 0.0], np.float32)
    both = loop_with(class_weights=tf.constant(by_class))
    both.run(0, STEPS)
    model, (inputs, targets) = keras_twin(), toy_arrays()
    rows = np.arange(STEPS * BATCH) % SIZE
    own = (weights() * by_class[targets])[rows]
    model.fit(inputs[rows], targets[rows], sample_weight=own, batch_size=BATCH, shuffle=False, verbose=0)
    for ours, theirs in zip(both.trainer.networks["model"].model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_replicas_weigh_as_one_does() -> None:
    options = {"network": plain_network, "batch": weighted_batch, "steps": STEPS}
    assert_same_run(trained(2, **options), trained(1, **options))


def test_an_evaluation_is_that_of_keras_also_with_a_padded_batch() -> None:
    class Collecting(ToyObjective):
        def compute(self, forward, batch):
            output = super().compute(forward, batch)
            output.collected = {"first": batch["inputs"][:, 0]}
            return output

    batches = EvaluationBatches(Split("validation", source(), np.arange(SIZE)), batch_size=24)
    trainer = Trainer([plain_network()], [Collecting()], [], seed=0)
    evaluator = Evaluator(trainer, batches.batch, batches.count)
    found, (inputs, targets) = evaluator.run(0), toy_arrays()
    expected = keras_twin().evaluate(inputs, targets, 24, sample_weight=weights(), verbose=0, return_dict=True)
    assert found["loss/total"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["metric/accuracy"] == pytest.approx(expected["accuracy"], rel=1e-5)
    np.testing.assert_array_equal(evaluator.collected("objective")["first"], inputs[:, 0])


def test_weights_without_an_example_or_a_loss_for_each_are_refused() -> None:
    class Mean(ToyObjective):
        def compute(self, forward, batch):
            output = super().compute(forward, batch)
            output.losses = {name: tf.reduce_mean(value) for name, value in output.losses.items()}
            return output

    def columns(step: tf.Tensor) -> Batch:
        batch = weighted_batch(step)
        return {**batch, SAMPLE_WEIGHTS: batch[SAMPLE_WEIGHTS][:, tf.newaxis]}

    for given, word in (({"objective": Mean}, "no loss of 'objective'"), ({"batch": columns}, r"\(16, 1\)")):
        with pytest.raises(UserError, match=word):
            loop_with(**given)
