"""What an objective samples without data, once an evaluation."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import StatelessHook, ToyObjective, build_context, toy_batch, toy_network
from trainer.errors import UserError
from trainer.network import Network
from trainer.objective import ObjectiveOutput
from trainer.step.evaluate import Evaluator
from trainer.step.trainer import Trainer

COUNT = 3


class Sampling(ToyObjective):
    """Collect logits, and sample those of ones."""

    def __init__(self, sampled="samples", **names):
        super().__init__(**names)
        self.sampled, self.traced, self.seen = sampled, 0, {}

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        return ObjectiveOutput(output.losses, output.metrics, output.outputs, {"logits": output.outputs})

    def sample(self, forward):
        self.traced += 1
        return {self.sampled: forward(self.network, tf.ones([5, 6])), "scalar": tf.constant(7)}

    def split_metrics(self, collected):
        self.seen = dict(collected)
        return {"largest": tf.reduce_max(collected["samples"]), "scalar": collected["scalar"]}


def evaluator(*objectives, network=None, hooks=()):
    network = network or toy_network(dropout=0.5)
    network.shared = len(objectives) > 1
    for hook in hooks:
        hook.build(build_context(network))

    def batch(index):
        found = toy_batch(index)
        return {**found, "weights": tf.ones([16])}

    return Evaluator(Trainer([network], objectives, hooks, seed=0), batch, COUNT), network


def test_samples_join_what_was_collected_with_the_weights_of_the_evaluation() -> None:
    objective = Sampling()
    found, network = evaluator(objective)
    assert found.collected("objective") == {}
    values = found.run(0)
    assert objective.traced == 1
    assert objective.seen.keys() == {"logits", "samples", "scalar"}
    collected = found.collected("objective")
    expected = network.model(np.ones((5, 6), np.float32), training=False).numpy()
    np.testing.assert_allclose(collected["samples"], expected, rtol=1e-6)
    assert collected["logits"].shape == (48, 3)
    assert values["metric/largest"] == pytest.approx(expected.max())
    assert values["metric/scalar"] == 7.0


def test_samples_follow_the_weights_and_the_batches_do_not_notice_them() -> None:
    found, network = evaluator(Sampling())
    before, first = found.run(0), found.collected("objective")["samples"]
    for variable in network.trainable_variables.values():
        variable.assign(variable + 0.5)
    found.run(0)
    assert np.abs(found.collected("objective")["samples"] - first).max() > 0.1
    plain, _ = evaluator(ToyObjective())
    assert {name: before[name] for name in plain.run(0)}.keys() == plain.run(0).keys()


def test_samples_use_what_hooks_make_of_the_weights() -> None:
    class Doubled(StatelessHook):
        def transform_weights(self, weights, context):
            assert not context.training
            return {name: 2.0 * weight for name, weight in weights.items()}

    found, network = evaluator(Sampling(), hooks=[Doubled()])
    found.run(0)
    for variable in network.trainable_variables.values():
        variable.assign(2.0 * variable)
    doubled = network.model(np.ones((5, 6), np.float32), training=False).numpy()
    np.testing.assert_allclose(found.collected("objective")["samples"], doubled, rtol=1e-5, atol=1e-6)


def test_two_objectives_sample_apart() -> None:
    objectives = [Sampling(name="first"), Sampling(name="second")]
    found, _ = evaluator(*objectives)
    values = found.run(0)
    np.testing.assert_array_equal(found.collected("first")["samples"], found.collected("second")["samples"])
    assert values["first/metric/scalar"] == values["second/metric/scalar"] == 7.0


def test_name_that_is_collected_already_is_refused() -> None:
    with pytest.raises(UserError, match="'objective' returns logits from sample, and its compute collects the same"):
        evaluator(Sampling("logits"))


def test_without_a_sample_nothing_is_added() -> None:
    found, _ = evaluator(ToyObjective())
    assert {*found.run(0)} == {"loss/cross_entropy", "loss/total", "metric/accuracy"}
    assert found.collected("objective") == {}


class Noise(keras.layers.Layer):
    """Add noise also outside training, so that every call moves the seed state."""

    def __init__(self) -> None:
        super().__init__(name="noise")
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)


def test_sample_starts_from_the_state_that_the_network_has_whatever_the_batches_drew() -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, name="logits"), Noise()])
    network = Network("model", model, keras.optimizers.SGD(0.1))
    network.optimizer.build(model.trainable_variables)
    found, _ = evaluator(Sampling(), network=network)
    found.run(0)
    samples = found.collected("objective")["samples"]
    np.testing.assert_allclose(samples, model(np.ones((5, 6), np.float32)).numpy(), rtol=1e-5)
