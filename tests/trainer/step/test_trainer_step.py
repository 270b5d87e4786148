"""One step: what it computes, in which order, and what it writes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.hook import Declaration
from hookline.trainer.network import Network
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import (
    BATCH,
    CountingHook,
    StatelessHook,
    ToyObjective,
    toy_arrays,
    toy_batch,
    toy_loop,
    toy_network,
)

OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_equal_keras_own_training(kind):
    network = toy_network(optimizer=OPTIMIZERS[kind](), regularizer=0.01)
    twin = toy_network(optimizer=OPTIMIZERS[kind](), regularizer=0.01).model
    twin.set_weights(network.model.get_weights())
    twin.compile(OPTIMIZERS[kind](), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    inputs, targets = toy_arrays()
    for step in range(4):
        twin.train_on_batch(inputs[step * BATCH :][:BATCH], targets[step * BATCH :][:BATCH])
    toy_loop(network=network).run(0, 4)
    for ours, theirs in zip(network.model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


class Halve(StatelessHook):
    def transform_weights(self, weights, context):
        return {name: value / 2.0 if name.endswith("kernel") else value for name, value in weights.items()}


class CopyKernel(StatelessHook):
    def build(self, context):
        self.kernel = context.network.trainable_variables["toy/hidden/kernel"].value
        self.copy, self.seen = tf.Variable(tf.zeros_like(self.kernel)), []

    def declare(self):
        state = {"copy": self.copy}
        return Declaration(state, writes=state)

    def note(self, stage, value):
        self.seen.append(stage)
        return value

    def transform_weights(self, weights, context):
        return self.note("weights", weights)

    def add_losses(self, context):
        return self.note("losses", {})

    def transform_gradients(self, gradients, context):
        return self.note("gradients", gradients)

    def veto(self, context):
        return self.note("veto", {})

    def update_ops(self, context):
        return self.note("update", [self.copy.assign(self.kernel)])

    def project(self, context):
        self.note("project", self.kernel.assign(tf.clip_by_value(self.kernel, -0.1, 0.1)))

    def measure(self, context):
        return self.note("measure", {"largest": tf.reduce_max(tf.abs(self.kernel))})


def test_stages_run_in_order_and_see_what_was_written_before():
    network, hook = toy_network(), CopyKernel()
    loop = toy_loop([hook], network=network)
    assert hook.seen == ["weights", "losses", "gradients", "veto", "update", "project", "measure"]
    before = hook.kernel.numpy()
    loop.run(0, 1)
    np.testing.assert_array_equal(hook.copy.numpy(), before)
    assert np.abs(hook.kernel.numpy()).max() <= np.float32(0.1)
    assert loop.accumulators.read()["largest"] == pytest.approx(0.1)


def test_regularizers_see_the_transformed_weights_and_count_once():
    network = toy_network(regularizer=0.5)
    kernel = network.trainable_variables["toy/hidden/kernel"].numpy()
    loop = toy_loop([Halve()], network=network)
    loop.run(0, 1)
    assert loop.accumulators.read()["loss/layers_model"] == pytest.approx(0.5 * np.sum((kernel / 2.0) ** 2), rel=1e-5)


class ClassicLayer(keras.layers.Layer):
    """Count calls in the way of TensorFlow 1: an assignment added to the collection, and nothing else."""

    def __init__(self, counter):
        super().__init__()
        self.counter = counter

    def call(self, inputs):
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, self.counter.assign_add(1.0).op)
        return inputs


def test_code_that_adds_to_the_collection_the_classic_way_is_honoured():
    counter = tf.Variable(0.0, trainable=False)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(3)(ClassicLayer(counter)(inputs)))
    network = Network("model", model, keras.optimizers.SGD(0.1))
    network.optimizer.build(model.trainable_variables)
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

    once, twice = toy_network(), toy_network()
    twice.model.set_weights(once.model.get_weights())
    toy_loop(network=once).run(0, 1)
    ChunkLoop(Trainer([twice], [Twice()], [], seed=0), toy_batch, xla=False).run(0, 1)
    mean_once = once.state_variables["toy/norm/moving_mean"].numpy()
    mean_twice = twice.state_variables["toy/norm/moving_mean"].numpy()
    np.testing.assert_allclose(mean_twice, mean_once * (1.0 + 0.99), rtol=1e-4, atol=1e-7)


class Puzzle(CountingHook):
    def transform_weights(self, weights, context):
        self.early = tf.convert_to_tensor(self.count)
        return weights

    def measure(self, context):
        return {"early": self.early, "identity": tf.identity(self.count)}


@pytest.mark.parametrize(("accumulation_steps", "xla"), [(1, True), (2, False)])
def test_the_step_reads_zero_before_its_update_ops_and_one_to_five_after(accumulation_steps, xla):
    loop = toy_loop([Puzzle()], xla=xla, accumulation_steps=accumulation_steps)
    seen = []
    for step in range(5):
        loop.run(step, 1)
        seen.append(loop.accumulators.read())
        loop.accumulators.reset()
    assert [values["early"] for values in seen] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [values["identity"] for values in seen] == [1.0, 2.0, 3.0, 4.0, 5.0]
