"""Gradient accumulation: a step in micro batches equals the step over the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.hook import Declaration
from hookline.trainer.network import Network
from hookline.trainer.objective import ObjectiveOutput
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
    updated,
    values_of,
)

HIDDEN = "toy/hidden/kernel"


def plain_network(*extra, penalty=0.0, seed=1):
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((6,)),
        keras.layers.Dense(8, name="hidden", activation="tanh", kernel_regularizer=keras.regularizers.L2(penalty)),
        *extra,
        keras.layers.Dense(3, name="logits"),
    ]
    network = Network("model", keras.Sequential(layers, name="toy"), keras.optimizers.Adam(0.05))
    network.optimizer.build(network.model.trainable_variables)
    return network


def run(accumulation_steps, *, hooks=list, network=plain_network, objectives=list, batch=toy_batch, xla=False):
    trained, options = network(), {"batch": batch, "xla": xla, "accumulation_steps": accumulation_steps}
    loop = toy_loop(hooks(), network=trained, objectives=objectives(), **options)
    loop.run(0, 3)
    return values_of(trained), loop.accumulators.read(), loop


def assert_same(parts, whole):
    (values, reported, _), (expected, whole_reported, _) = parts, whole
    assert list(reported) == list(whole_reported)
    assert reported == pytest.approx(whole_reported, rel=1e-4, abs=1e-6)
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def padded_batch(step):
    weights = np.concatenate([[1.0, 0.0, 2.0, 0.5], np.zeros(4), np.ones(BATCH - 8)])
    return {**toy_batch(step), "weights": tf.constant(weights, tf.float32)}


class Halve(StatelessHook):
    def transform_weights(self, weights, context):
        @tf.custom_gradient
        def rounded(latent):
            return tf.round(latent * 8.0) / 16.0, lambda upstream: upstream * 0.3

        return {name: rounded(value) if name.endswith("kernel") else value for name, value in weights.items()}


class Pull(StatelessHook):
    def transform_weights(self, weights, context):
        self.length = tf.norm(context.latent[HIDDEN])
        self.positive = tf.math.count_nonzero(context.latent[HIDDEN] > 0)  # an integer has no gradient
        return weights

    def add_losses(self, context):
        return {
            "outputs": tf.reduce_sum(tf.square(context.outputs), axis=-1),
            "latent": 0.1 * tf.reduce_sum(tf.square(context.latent["toy/logits/kernel"])),
            "weights": tf.reduce_mean(tf.abs(context.weights[HIDDEN])),
            "length": 0.1 * self.length * tf.cast(self.positive, tf.float32),
        }


@pytest.mark.parametrize(("accumulation_steps", "xla"), [(BATCH, False), pytest.param(4, True, marks=pytest.mark.full)])
def test_accumulated_step_equals_whole_batch_step(accumulation_steps, xla):
    options = {"network": lambda: plain_network(penalty=0.1), "batch": padded_batch}
    options["hooks"] = lambda: [Halve("halve"), Pull("pull")]
    assert_same(run(accumulation_steps, xla=xla, **options), run(1, **options))


def test_batch_norm_normalizes_by_micro_batch_and_is_written_once():
    network = toy_network()
    weights = {name: np.array(variable.value) for name, variable in network.variables.items()}
    loop = toy_loop(network=network, accumulation_steps=2)
    loop.run(0, 1)
    hidden = toy_arrays()[0][:BATCH] @ weights[HIDDEN] + weights["toy/hidden/bias"]
    mean = np.zeros(8)
    for half in np.split(hidden, 2):
        mean = 0.99 * mean + 0.01 * half.mean(axis=0)
    np.testing.assert_allclose(network.variables["toy/norm/moving_mean"].numpy(), mean, rtol=1e-4, atol=1e-7)
    assert updated(loop.trainer.commits[0], network) == ["toy/norm/moving_mean", "toy/norm/moving_variance"]


class Counting(keras.layers.Layer):
    def build(self, input_shape):
        make = {"shape": (), "initializer": "zeros", "trainable": False}
        self.calls = self.add_weight(name="calls", dtype="int32", **make)
        self.halved = self.add_weight(name="halved", **{**make, "initializer": "ones"})
        self.examples = self.add_weight(name="examples", **make)
        self.total = self.add_weight(name="total", **make)

    def call(self, inputs, training=False):
        if training:
            self.calls.assign(self.calls + 1)
            self.halved.assign(self.halved * 0.5 ** keras.ops.cast(self.calls, "float32"))
            self.examples.assign(self.examples + keras.ops.shape(inputs)[0])
            self.total.assign(self.total + keras.ops.sum(inputs))
        return inputs * (1.0 + 0.1 * keras.ops.cast(self.calls, "float32"))


def test_layer_counters_match_those_of_the_whole_batch():
    network = lambda: plain_network(Counting(name="counting"))  # noqa: E731
    parts, whole = run(4, network=network), run(1, network=network)
    assert_same(parts, whole)
    network, _, loop = parts
    counted = {name.rpartition("/")[2]: value for name, value in network.items() if "/counting/" in name}
    assert (counted["calls"], counted["examples"], counted["halved"]) == (3, 3 * BATCH, 0.5**6)
    operations = loop.trainer.commits[0].graph.get_operations()
    (inner,) = (each for each in operations if "While" in each.type)
    assert inner.get_attr("parallel_iterations") == 1
    assert "MatMul" not in {each.type for each in operations}  # neither pass is outside the loop


class Masked(ToyObjective):
    """Average over the values that the objective's mask and a dropout both keep; each of them is 1."""

    uneven = True

    def compute(self, forward, batch):
        outputs = forward("model", batch["inputs"])
        drawn = tf.random.stateless_uniform(tf.shape(outputs), forward.stateless_seed("mask")) < 0.5
        counts = tf.reduce_sum(tf.cast(drawn & (outputs != 0), tf.float32), axis=1)
        ones = tf.cast(counts > 0, tf.float32) + 0.0 * tf.reduce_sum(outputs, axis=1)
        return ObjectiveOutput({"one": ones}, counts={"loss/one": counts})


@pytest.mark.parametrize("accumulation_steps", [1, 4])
def test_counts_use_the_same_draws_as_the_losses(accumulation_steps):
    def network():
        layers = [keras.Input((6,)), keras.layers.Dense(5), keras.layers.Dropout(0.5, seed=1)]
        return network_of(keras.Sequential(layers, name="toy"))

    _, reported, _ = run(accumulation_steps, network=network, objectives=lambda: [Masked()])
    assert reported["loss/one"] == pytest.approx(1.0)


class SelfCounting(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.counter = tf.Variable(0.0, trainable=False)

    def call(self, inputs):
        self.counter.assign_add(1.0)
        return inputs


def test_activity_losses_of_layers_are_detected():
    for extra, noted in ((keras.layers.ActivityRegularization(0.1), True), (keras.layers.Dropout(0.0), False)):
        *_, loop = run(2, network=lambda extra=extra: plain_network(extra, penalty=0.1))
        assert loop.trainer.layer_losses is noted


class Watch(StatelessHook):
    def build(self, context):
        self.seen = {}
        self.dropped = tf.Variable(tf.zeros([BATCH, 8]), trainable=False)
        self.noise = tf.Variable(tf.zeros([BATCH]), trainable=False)

    def declare(self):
        state = {"dropped": self.dropped, "noise": self.noise}
        return Declaration(state, writes=state)

    def request_taps(self, model):
        return {"dropped": model.get_layer("dropout").output}

    def add_losses(self, context):
        self.see("add_losses", context.batch, context)
        shape = tf.shape(context.batch["targets"])
        context.taps["noise"] = tf.random.stateless_uniform(shape, context.stateless_seed("noise"))
        return {}

    def transform_gradients(self, gradients, context):
        self.see("transform_gradients", context.batch, context)
        return gradients

    def update_ops(self, context):
        self.see("update_ops", context.batch, context)
        return [self.dropped.assign(context.taps["dropped"]), self.noise.assign(context.taps["noise"])]

    def see(self, stage, batch, context):
        self.seen.setdefault(stage, []).append((batch["inputs"].shape[0], context.micro_batch is None))


def test_hooks_see_the_whole_batch_except_in_add_losses():
    network, hook = toy_network(dropout=0.5), Watch("watch")
    network.taps |= hook.request_taps(network.model)
    toy_loop([hook], network=network, accumulation_steps=4).run(0, 1)
    assert hook.seen == {
        **{stage: [(BATCH, True)] for stage in ("transform_gradients", "update_ops")},
        "add_losses": [(BATCH // 4, False)],
    }
    masks = (hook.dropped.numpy() != 0).reshape(4, -1)
    assert len(np.unique(masks, axis=0)) == 4  # each micro batch draws another mask
    assert len(np.unique(hook.noise.numpy())) == BATCH  # and other noise
    (counted,) = (v.numpy() for name, v in network.variables.items() if "seed_generator_state" in name)
    assert counted[1] == 4


def test_accumulation_refuses_a_forward_pass_that_writes_variables():
    run(1, network=lambda: plain_network(SelfCounting()))
    assert_refused("writes variables itself", run, 2, network=lambda: plain_network(SelfCounting()))
