"""One step: what it computes, in which order, and what it writes."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.finished import Halve
from tests.support.toy import BATCH, CountingHook, ToyObjective, network_of, toy_arrays, toy_loop, toy_network


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_steps_match_training_in_keras(wrap):
    make = partial(keras.optimizers.AdamW, 0.01, weight_decay=0.1, clipnorm=0.5, use_ema=True)
    network = toy_network(optimizer=wrap(make()), regularizer=0.01)
    twin = toy_network(optimizer=make(), regularizer=0.01).model
    twin.set_weights(network.model.get_weights())
    twin.compile(wrap(make()), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    inputs, targets = toy_arrays()
    for step in range(4):
        twin.train_on_batch(inputs[step * BATCH :][:BATCH], targets[step * BATCH :][:BATCH])
    toy_loop(network=network).run(0, 4)
    for ours, theirs in zip(network.model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_regularizers_use_transformed_weights_and_count_once():
    network = toy_network(regularizer=0.5)
    kernel = network.trainable_variables["toy/hidden/kernel"].numpy()
    loop = toy_loop([Halve("halve")], network=network)
    loop.run(0, 1)
    assert loop.accumulators.read()["loss/layers_model"] == pytest.approx(0.5 * np.sum((kernel / 2.0) ** 2), rel=1e-5)


class ClassicLayer(keras.layers.Layer):
    """Count calls as in TensorFlow 1: only an assignment that is added to the collection."""

    def __init__(self, counter):
        super().__init__()
        self.counter = counter

    def call(self, inputs):
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, self.counter.assign_add(1.0).op)
        return inputs


def test_updates_added_to_the_tensorflow_1_collection_run():
    counter = tf.Variable(0.0, trainable=False)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(3)(ClassicLayer(counter)(inputs)))
    network = network_of(model)
    counter.assign(0.0)
    loop = toy_loop(network=network)
    counter.assign(0.0)
    loop.run(0, 5)
    assert counter.numpy() == 5.0


def test_calling_a_network_twice_updates_its_statistics_twice():
    class Twice(ToyObjective):
        def compute(self, forward, batch):
            forward("model", batch["inputs"])
            return super().compute(forward, batch)

    network = toy_network()
    mean = toy_arrays()[0][:BATCH].mean(axis=0) @ network.variables["toy/hidden/kernel"].numpy()
    toy_loop(network=network, objectives=[Twice()]).run(0, 1)
    found = network.state_variables["toy/norm/moving_mean"].numpy()
    np.testing.assert_allclose(found, 0.01 * mean * (1.0 + 0.99), rtol=1e-4, atol=1e-7)


class Puzzle(CountingHook):
    def transform_weights(self, weights, context):
        self.early = tf.convert_to_tensor(self.count)
        return weights

    def measure(self, context):
        return {"early": self.early, "identity": tf.identity(self.count)}


@pytest.mark.parametrize(("accumulation_steps", "xla"), [(1, True), (2, False)])
def test_step_reads_state_before_and_after_its_update_ops(accumulation_steps, xla):
    loop = toy_loop([Puzzle()], xla=xla, accumulation_steps=accumulation_steps)
    seen = []
    for step in range(5):
        loop.run(step, 1)
        seen.append(loop.accumulators.read())
        loop.accumulators.reset()
    assert [values["early"] for values in seen] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [values["identity"] for values in seen] == [1.0, 2.0, 3.0, 4.0, 5.0]
