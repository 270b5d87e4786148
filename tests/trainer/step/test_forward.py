"""What a forward pass uses: transformed weights and statistics, taps, and the losses of layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.forward import tapped_model
from tests.support.refusals import assert_refused
from tests.support.toy import (
    BATCH,
    StatelessHook,
    ToyObjective,
    network_of,
    toy_arrays,
    toy_batch,
    toy_loop,
    toy_network,
    values_of,
)

MEAN = "toy/norm/moving_mean"


class Shift(StatelessHook):
    training = False

    def transform_weights(self, weights, context):
        if context.training and not self.training:
            return weights
        return {**weights, MEAN: context.state[MEAN] + 1.0}


def test_only_evaluation_uses_transformed_statistics():
    training = Shift("shift")
    training.training = True
    assert_refused(f"'shift' returned the unknown name '{MEAN}' from transform_weights", toy_loop, [training])
    network = toy_network()
    network.state_variables[MEAN].assign(np.linspace(-1, 1, 8))
    loop = toy_loop([Shift()], network=network)
    before = values_of(network)
    found = Evaluator(loop.trainer, toy_batch, 4).run(0)
    np.testing.assert_equal(values_of(network), before)
    network.state_variables[MEAN].assign(before[MEAN] + 1.0)
    assert found == Evaluator(toy_loop(network=network).trainer, toy_batch, 4).run(0)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.hidden, self.norm = keras.layers.Dense(8, activation="tanh"), keras.layers.BatchNormalization()
        self.noise, self.logits = keras.layers.GaussianDropout(0.5, seed=3), keras.layers.Dense(3)

    def call(self, inputs, mask=None):
        return self.logits(self.noise(self.norm(self.hidden(inputs))))


def test_subclassed_model_trains_as_in_keras():
    inputs, targets = toy_arrays()
    ours, theirs = Subclassed(), Subclassed()
    for model in (ours, theirs):
        model(keras.Input((6,)))
    theirs.set_weights(ours.get_weights())
    whole = {"inputs": tf.constant(inputs), "targets": tf.constant(targets)}
    toy_loop(network=network_of(ours), batch=lambda step: whole).run(0, 20)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    theirs.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    theirs.fit(inputs, targets, batch_size=len(inputs), epochs=20, shuffle=False, verbose=0)
    for found, expected in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_layer_that_assigns_trainable_weights_is_refused():
    kernel = keras.layers.SpectralNormalization(keras.layers.Dense(3, name="dense"))
    network = network_of(keras.Sequential([keras.Input((6,)), kernel]))
    assert_refused("^A layer assigns 'sequential.*dense/kernel' in its forward pass", toy_loop, network=network)


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")  # Keras accepts keys other than the names
def test_taps_keep_the_structure_of_inputs_and_outputs():
    inputs, given = {"x": keras.Input((6,), name="features")}, {"x": tf.constant(toy_arrays()[0])}
    first, second = (keras.layers.Dense(2, name=name)(inputs["x"]) for name in ("b", "a"))
    for outputs in ({"b": first, "a": second}, {"b": first}, (second, first), [first], first):
        network = network_of(keras.Model(inputs, outputs))
        network.taps["tap"] = second
        found = tapped_model(network)(given)["outputs"]
        keras.tree.map_structure(np.testing.assert_array_equal, network.model(given), found)


class Twice(ToyObjective):
    def compute(self, forward, batch):
        forward(self.network, 2.0 * batch["inputs"])
        return super().compute(forward, batch)


def test_each_call_adds_its_activity_losses_and_weights_count_once():
    network = toy_network(regularizer=0.1)
    hidden = network.model.get_layer("hidden")
    hidden.activity_regularizer = keras.regularizers.L2(0.01)
    inputs = toy_batch(0)["inputs"]
    outputs = np.stack([hidden(inputs), hidden(2.0 * inputs)])
    expected = 0.1 * np.sum(np.square(hidden.kernel)) + 0.01 * np.sum(np.square(outputs)) / BATCH
    loop = toy_loop(network=network, objectives=[Twice(name="a"), Twice(name="b")])
    found = Evaluator(loop.trainer, toy_batch, 1).run(0)
    loop.run(0, 1)
    losses = [
        found["a/loss/layers_model"],
        found["b/loss/layers_model"],
        loop.accumulators.read()["a/loss/layers_model"],
    ]
    assert losses == pytest.approx([expected] * 3, rel=1e-5)
