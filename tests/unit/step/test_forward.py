"""What a forward pass starts from: the hooks' weights and statistics, and what they hold."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import (
    BATCH,
    SIZE,
    StatelessHook,
    ToyObjective,
    toy_arrays,
    toy_batch,
    toy_loop,
    toy_network,
    values_of,
)
from trainer.network import Network
from trainer.step.context import StepContext
from trainer.step.evaluate import Evaluator
from trainer.step.trainer import Trainer

MEAN = "toy/norm/moving_mean"


class Shift(StatelessHook):
    """Start from another moving mean."""

    def __init__(self, name: str = "shift", by: float = 1.0, *, evaluation_only: bool = False) -> None:
        super().__init__(name)
        self.by, self.evaluation_only = by, evaluation_only

    def transform_statistics(self, state, context):
        if self.evaluation_only and context.training:
            return state
        return {**state, MEAN: self.by * (state[MEAN] + 1.0)}


def read(*hooks: StatelessHook, training: bool = False):
    network = toy_network(dropout=0.5)
    trainer = Trainer([network], [ToyObjective()], hooks, seed=0)
    return network, trainer.forward(tf.constant(0, tf.int64), {}, objective="", training=training).passes["model"]


def test_statistics_pass_through_the_hooks_in_order_and_are_known_as_they_were_read() -> None:
    network, found = read(Shift("first", 2.0), Shift("second", 3.0))
    np.testing.assert_allclose(found.state[MEAN], np.full(8, 9.0))
    assert found.state.keys() == found.context.state.keys() == network.state_variables.keys()
    np.testing.assert_array_equal(found.context.state[MEAN], np.zeros(8))
    assert found.changed == set()


def test_without_a_hook_that_transforms_them_statistics_are_the_tensors_that_were_read() -> None:
    _, found = read(StatelessHook())
    assert all(found.state[name] is tensor for name, tensor in found.context.state.items())


def test_an_evaluation_uses_the_transformed_statistics_and_leaves_the_variables() -> None:
    network = toy_network()
    network.state_variables[MEAN].assign(np.linspace(-1, 1, 8))
    loop = toy_loop([Shift(evaluation_only=True)], network=network)
    before = values_of(network)
    found = Evaluator(loop.trainer, toy_batch, SIZE // BATCH).run(0)
    for name, value in values_of(network).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    network.state_variables[MEAN].assign(before[MEAN] + 1.0)
    plain = Trainer([network], [ToyObjective()], [], seed=0)
    assert found == Evaluator(plain, toy_batch, SIZE // BATCH).run(0)


def test_in_training_what_is_written_follows_from_the_transformed_statistics() -> None:
    plain, shifted = toy_network(), toy_network()
    shifted.model.set_weights(plain.model.get_weights())
    toy_loop(network=plain).run(0, 1)
    toy_loop([Shift()], network=shifted).run(0, 1)
    moved = shifted.state_variables[MEAN].numpy() - plain.state_variables[MEAN].numpy()
    np.testing.assert_allclose(moved, 0.99, rtol=1e-5)


class Hold(StatelessHook):
    """Hold some entries."""

    def __init__(self, name: str, held: dict) -> None:
        super().__init__(name)
        self.entries = held

    def held(self, context: StepContext):
        assert context.latent, "hooks find the values in the context"
        assert not context.training
        return {name: tf.constant(entries) for name, entries in self.entries.items()}


def test_entries_that_any_hook_holds_are_held() -> None:
    rows, columns = np.zeros((6, 8), bool), np.zeros((6, 8), bool)
    rows[:2], columns[:, 3] = True, True
    first = Hold("first", {"toy/hidden/kernel": rows, MEAN: False})
    second = Hold("second", {"toy/hidden/kernel": columns, "toy/logits/bias": True})
    _, found = read(first, second)
    held = {name: tensor.numpy() for name, tensor in found.context.held.items()}
    assert held.keys() == {"toy/hidden/kernel", MEAN, "toy/logits/bias"}
    np.testing.assert_array_equal(held["toy/hidden/kernel"], rows | columns)
    assert (bool(held[MEAN]), bool(held["toy/logits/bias"])) == (False, True)
    assert read(first, training=True)[1].context.held == {}


def test_a_hook_of_another_network_is_not_asked() -> None:
    first, second = toy_network("first"), toy_network("second", keras.optimizers.SGD(0.1))
    hook = Shift()
    hook.network = "second"
    second.fixed = True
    trainer = Trainer([first, second], [ToyObjective("first")], [hook], seed=0)
    passes = trainer.forward(tf.constant(0, tf.int64), {}, objective="", training=False).passes
    assert (passes["first"].state[MEAN].numpy() == 0.0).all()
    assert (passes["second"].state[MEAN].numpy() == 1.0).all()


class Subclassed(keras.Model):
    """Be no functional model: batch norm and a dropout that counts on Keras to be told of training."""

    def __init__(self) -> None:
        super().__init__(name="own")
        self.hidden, self.norm = keras.layers.Dense(8, activation="tanh"), keras.layers.BatchNormalization()
        self.noise, self.logits = keras.layers.GaussianDropout(0.5, seed=3), keras.layers.Dense(3)

    def run(self, inputs):
        return self.logits(self.noise(self.norm(self.hidden(inputs))))


class Bare(Subclassed):
    def call(self, x):
        return self.run(x)


class Told(Subclassed):
    def call(self, x, training=None):
        return self.run(x)


class Masked(Subclassed):
    def call(self, inputs, mask=None):
        return self.run(inputs)


@pytest.mark.parametrize("kind", [Bare, Told, Masked])
def test_a_subclassed_model_gets_what_its_call_takes_and_trains_as_under_keras(kind: type[Subclassed]) -> None:
    inputs, targets = toy_arrays()
    ours, theirs = (kind() for _ in range(2))
    for model in (ours, theirs):
        model(keras.Input((6,)))
    theirs.set_weights(ours.get_weights())
    network = Network("model", ours, keras.optimizers.SGD(0.1))
    network.optimizer.build(ours.trainable_variables)
    whole = {"inputs": tf.constant(inputs), "targets": tf.constant(targets)}
    toy_loop(network=network, batch=lambda step: whole).run(0, 20)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    theirs.compile(keras.optimizers.SGD(0.1), loss)
    theirs.fit(inputs, targets, batch_size=SIZE, epochs=20, shuffle=False, verbose=0)
    for found, expected in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)
    assert kind is not Told or np.abs(ours.norm.moving_mean).max() > 0.01
