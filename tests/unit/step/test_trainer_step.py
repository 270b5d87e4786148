"""One step: what it computes, in which order, and what it writes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import (
    BATCH,
    CLASSES,
    FEATURES,
    StatelessHook,
    ToyObjective,
    toy_arrays,
    toy_batch,
    toy_loop,
    toy_network,
    values_of,
)
from trainer.errors import UserError
from trainer.network import Network
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_equal_keras_own_training(kind: str) -> None:
    network = toy_network(optimizer=OPTIMIZERS[kind](), regularizer=0.01)
    twin = toy_network(optimizer=OPTIMIZERS[kind](), regularizer=0.01).model
    twin.set_weights(network.model.get_weights())
    twin.compile(OPTIMIZERS[kind](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    inputs, targets = toy_arrays()
    for step in range(4):
        twin.train_on_batch(inputs[step * BATCH :][:BATCH], targets[step * BATCH :][:BATCH])
    toy_loop(network=network).run(0, 4)
    for ours, theirs in zip(network.model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_batch_norm_statistics_and_seed_state_move() -> None:
    network = toy_network(dropout=0.5)
    before = values_of(network)
    toy_loop(network=network).run(0, 3)
    after = values_of(network)
    moved = {name for name in network.state_variables if not np.array_equal(before[name], after[name])}
    assert moved == set(network.state_variables)
    assert {name.rsplit("/")[-1] for name in moved} == {"moving_mean", "moving_variance", "seed_generator_state"}


def test_stages_run_in_the_declared_order() -> None:
    seen: list[str] = []

    class Recorder(StatelessHook):
        def transform_batch(self, batch, context):
            seen.append("transform_batch")
            return batch

        def transform_weights(self, weights, context):
            seen.append("transform_weights")
            return weights

        def transform_statistics(self, state, context):
            seen.append("transform_statistics")
            return state

        def add_losses(self, context):
            seen.append("add_losses")
            assert context.outputs.shape == (BATCH, CLASSES)
            return {}

        def transform_gradients(self, gradients, context):
            seen.append("transform_gradients")
            assert set(context.losses) == {"cross_entropy", "total"}
            return gradients

        def veto(self, context):
            seen.append("veto")
            return {}

        def update_ops(self, context):
            seen.append("update_ops")
            return []

        def project(self, context):
            seen.append("project")

        def measure(self, context):
            seen.append("measure")
            return {}

    toy_loop([Recorder()])
    assert seen == [
        *("transform_batch", "transform_weights", "transform_statistics", "add_losses", "transform_gradients"),
        *("veto", "update_ops", "project", "measure"),
    ]


class Halve(StatelessHook):
    """Use half of every kernel in the forward pass."""

    def transform_weights(self, weights, context):
        return {name: value / 2.0 if name.endswith("kernel") else value for name, value in weights.items()}


def test_gradient_is_taken_with_respect_to_the_latent_variable() -> None:
    plain, halved = toy_network(), toy_network()
    halved.model.set_weights([w * 2.0 if w.ndim == 2 else w for w in plain.model.get_weights()])
    before = halved.trainable_variables["toy/hidden/kernel"].numpy()
    start = plain.trainable_variables["toy/hidden/kernel"].numpy()
    toy_loop(network=plain).run(0, 1)
    toy_loop([Halve()], network=halved).run(0, 1)
    moved = halved.trainable_variables["toy/hidden/kernel"].numpy() - before
    expected = (plain.trainable_variables["toy/hidden/kernel"].numpy() - start) / 2.0  # the chain rule's half
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-6)


class CopyKernel(StatelessHook):
    """Copy the kernel in UPDATE_OPS, clip it in project, measure it last."""

    def build(self, context):
        self.kernel = context.network.trainable_variables["toy/hidden/kernel"].value
        self.copy = tf.Variable(tf.zeros_like(self.kernel))

    def state(self):
        return {"copy": self.copy}

    writes = state

    def update_ops(self, context):
        return [self.copy.assign(self.kernel)]

    def project(self, context):
        self.kernel.assign(tf.clip_by_value(self.kernel, -0.1, 0.1))

    def measure(self, context):
        return {"largest": tf.reduce_max(tf.abs(self.kernel))}


def test_update_ops_see_the_variables_before_the_apply_and_measures_after_the_projection() -> None:
    network, hook = toy_network(), CopyKernel()
    loop = toy_loop([hook], network=network)
    before = hook.kernel.numpy()
    loop.run(0, 1)
    np.testing.assert_array_equal(hook.copy.numpy(), before)
    assert np.abs(hook.kernel.numpy()).max() <= np.float32(0.1)
    assert loop.accumulators.read()["largest"] == pytest.approx(0.1)


def test_loss_of_a_hook_counts_and_is_named() -> None:
    class Pull(StatelessHook):
        def add_losses(self, context):
            return {"pull": tf.reduce_mean(tf.square(context.outputs), axis=-1)}

    loop = toy_loop([Pull()])
    loop.run(0, 1)
    values = loop.accumulators.read()
    assert values["loss/total"] == pytest.approx(values["loss/cross_entropy"] + values["loss/pull"])
    assert values["loss/pull"] > 0.0


def test_two_losses_of_one_name_are_refused() -> None:
    class Twice(StatelessHook):
        def add_losses(self, context):
            return {"cross_entropy": tf.constant(1.0)}

    with pytest.raises(UserError, match="adds losses named \\['cross_entropy'\\]"):
        toy_loop([Twice()])


def test_regularizers_see_the_transformed_weights_and_count_once() -> None:
    network = toy_network(regularizer=0.5)
    kernel = network.trainable_variables["toy/hidden/kernel"].numpy()
    loop = toy_loop([Halve()], network=network)
    loop.run(0, 1)
    assert loop.accumulators.read()["loss/layers_model"] == pytest.approx(0.5 * np.sum((kernel / 2.0) ** 2), rel=1e-5)


def test_error_in_a_hook_keeps_its_type_and_names_hook_and_stage() -> None:
    class Broken(StatelessHook):
        def transform_weights(self, weights, context):
            raise KeyError("missing")

    with pytest.raises(KeyError) as caught:
        toy_loop([Broken("broken")])
    assert "in hook broken, stage transform_weights, while the step was traced" in caught.value.__notes__


class ClassicLayer(keras.layers.Layer):
    """Count calls in the way of TensorFlow 1: an assignment added to the collection, and nothing else."""

    def __init__(self, counter: tf.Variable) -> None:
        """Keep the variable to count in."""
        super().__init__()
        self.counter = counter

    def call(self, inputs):
        """Add the count to UPDATE_OPS and return the inputs."""
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, self.counter.assign_add(1.0).op)
        return inputs


def test_code_that_adds_to_the_collection_the_classic_way_is_honoured() -> None:
    counter = tf.Variable(0.0, trainable=False)
    inputs = keras.Input((FEATURES,))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(ClassicLayer(counter)(inputs)))
    network = Network("model", model, keras.optimizers.SGD(0.1))
    network.optimizer.build(model.trainable_variables)
    counter.assign(0.0)
    loop = toy_loop(network=network)
    counter.assign(0.0)
    loop.run(0, 5)
    assert counter.numpy() == 5.0


def test_two_networks_train_apart() -> None:
    first, second = toy_network("first"), toy_network("second")
    objectives = [ToyObjective("first", "one"), ToyObjective("second", "two")]
    loop = ChunkLoop(Trainer([first, second], objectives, [], seed=0), toy_batch, xla=False)
    loop.run(0, 3)
    assert {"one/loss/total", "two/loss/total"} <= set(loop.accumulators.read())
    before = values_of(second)
    second.fixed = True
    ChunkLoop(Trainer([first, second], objectives[:1], [], seed=0), toy_batch, xla=False).run(0, 3)
    for name, value in values_of(second).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


class Borrow(ToyObjective):
    """Train one network through another one's outputs."""

    def compute(self, forward, batch):
        forward("second", batch["inputs"])
        return super().compute(forward, batch)


def test_network_that_an_objective_does_not_own_keeps_its_statistics() -> None:
    first, second = toy_network("first"), toy_network("second", dropout=0.5)
    second.fixed = True
    before = values_of(second)
    ChunkLoop(Trainer([first, second], [Borrow("first")], [], seed=0), toy_batch, xla=False).run(0, 2)
    for name, value in values_of(second).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_calling_a_network_twice_updates_its_statistics_twice() -> None:
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


def test_taps_reach_the_hooks() -> None:
    class Tap(StatelessHook):
        def request_taps(self, model):
            return {"features": model.get_layer("activation").output}

        def add_losses(self, context):
            assert context.taps["features"].shape == (BATCH, 8)
            return {"features": tf.reduce_mean(tf.square(context.taps["features"]), axis=-1)}

    network, hook = toy_network(), Tap()
    network.taps = hook.request_taps(network.model)
    loop = toy_loop([hook], network=network)
    loop.run(0, 1)
    assert 0.0 < loop.accumulators.read()["loss/features"] < 1.0


def test_unknown_network_is_named() -> None:
    with pytest.raises(UserError, match="changes the network 'other'. Expected: model"):
        Trainer([toy_network()], [ToyObjective("other")], [], seed=0)
    hook = StatelessHook()
    hook.network = "other"
    with pytest.raises(UserError, match="works on the network 'other'. Expected: model"):
        Trainer([toy_network()], [ToyObjective()], [hook], seed=0)


def test_same_seed_and_step_give_the_same_draw() -> None:
    from trainer.step.context import StepContext

    network = toy_network()
    context = StepContext(tf.constant(5, tf.int64), 7, True, "objective", network, {})
    other = StepContext(tf.constant(6, tf.int64), 7, True, "objective", network, {})
    assert np.array_equal(context.stateless_seed("a"), context.stateless_seed("a"))
    assert not np.array_equal(context.stateless_seed("a"), context.stateless_seed("b"))
    assert not np.array_equal(context.stateless_seed("a"), other.stateless_seed("a"))


def test_state_that_a_hook_leaves_out_is_not_written() -> None:
    class Hold(StatelessHook):
        def transform_state(self, new_state, context):
            return {name: value for name, value in new_state.items() if not name.endswith("moving_mean")}

        def frozen(self):
            return {"toy/norm/moving_mean"}

    network = toy_network(dropout=0.5)
    before = values_of(network)
    toy_loop([Hold()], network=network).run(0, 2)
    after = values_of(network)
    moved = {name for name in network.state_variables if not np.array_equal(before[name], after[name])}
    assert moved == set(network.state_variables) - {"toy/norm/moving_mean"}
