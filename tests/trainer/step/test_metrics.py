"""Averages over examples and over steps, and the norms of gradients before and after hooks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.clip_gradients import ClipGradients
from hookline.trainer.objective import ObjectiveOutput
from hookline.trainer.step.means import average_output, example_weights, weighted_mean
from hookline.trainer.step.metrics import Accumulators, GradientNorms, LossScale
from tests.support.hooked import named
from tests.support.toy import StatelessHook, toy_loop, toy_network, values_of

BEFORE, AFTER = "grad_norm/before", "grad_norm/after"


def test_padding_is_excluded_from_averages():
    def mean(values, weights):
        return weighted_mean("pixels", tf.constant(values), tf.constant(weights)).numpy()

    assert mean([1.0, 3.0, 100.0], [1.0, 1.0, 0.0]) == 2.0
    assert mean(4.0, [1.0, 0.0]) == 4.0
    assert mean([1.0, 2.0], [0.0, 0.0]) == 0.0
    with pytest.raises(ValueError, match="'pixels'"):
        mean([[1.0, 2.0]], [1.0])
    output = ObjectiveOutput({"a": tf.constant([1.0, 2.0])}, {"b": tf.constant([True, False])})
    losses, metrics = average_output(output, {"inputs": tf.zeros([2, 1])})  # without weights
    assert (losses["a"].numpy(), metrics["b"].numpy()) == (1.5, 0.5)
    for inputs in ({"a": tf.zeros([3, 4]), "b": tf.zeros([3])}, (tf.zeros([3, 4]), tf.zeros([3, 4]))):
        assert example_weights({"inputs": inputs}).numpy().tolist() == [1.0, 1.0, 1.0]


def test_accumulators_average_over_steps_and_omit_what_never_counted():
    accumulators = Accumulators()
    accumulators.names = ["loss", "rare"]
    accumulators.reset()
    accumulators.add(tf.constant([[2.0, 1.0], [0.0, 0.0]]))
    accumulators.add(tf.constant([[4.0, 1.0], [0.0, 0.0]]))
    assert accumulators.read() == {"loss": 3.0}
    accumulators.reset_others()
    assert accumulators.read() == {"loss": 3.0}
    accumulators.names = ["loss"]
    accumulators.reset_others()  # the sums of a run with other metrics
    assert accumulators.read() == {}


RATE = 0.5


class Times(StatelessHook):
    def __init__(self, name, factor):
        super().__init__(name)
        self.factor = factor

    def transform_gradients(self, gradients, context):
        return {name: self.factor * value for name, value in gradients.items()}


def sgd_network():
    keras.utils.set_random_seed(0)
    return toy_network(optimizer=keras.optimizers.SGD(RATE))


def loop_of(hooks=(), **options):
    return toy_loop(hooks, network=sgd_network(), **options)


def norms_of(loop):
    return {name: value for name, value in loop.accumulators.read().items() if "grad_norm/" in name}


def moved(hooks=(), steps=1):
    network, lengths = sgd_network(), []
    loop = toy_loop(hooks, network=network)
    for step in range(steps):
        before = values_of(network)
        loop.run(step, 1)
        after = values_of(network)
        squares = [
            np.square(after[name] - before[name], dtype=np.float64).sum() for name in network.trainable_variables
        ]
        lengths.append(float(np.sqrt(sum(squares)) / RATE))
    return lengths


def test_gradient_norms_follow_each_hook_that_changes_gradients():
    hooks = [
        Times("a_thrice", 3.0),
        named(ClipGradients(limit=0.01, network="model"), "clip_gradients"),
        StatelessHook("watches"),
    ]
    loop = loop_of(hooks)
    loop.run(0, 1)
    (before,) = moved()
    slices = tf.IndexedSlices(tf.constant([[3.0, 0.0], [0.0, 4.0], [-3.0, 0.0]]), tf.constant([1, 0, 1]), (5, 2))
    values = GradientNorms({"model": {"embedding": slices, "bias": None}}).compute()
    assert float(values[BEFORE]) == 4.0  # of the tensor that they represent
    with tf.Graph().as_default() as graph:
        GradientNorms({"model": {"kernel": tf.ones(2), "bias": tf.ones(3)}}).compute()
    assert "AddN" not in {each.type for each in graph.get_operations()}  # its order of summation is not fixed
    norms = norms_of(loop)
    assert list(norms) == [BEFORE, f"{AFTER}/a_thrice", f"{AFTER}/clip_gradients", AFTER]
    assert norms[BEFORE] == pytest.approx(before, rel=1e-4)
    assert norms[f"{AFTER}/a_thrice"] == pytest.approx(3.0 * before, rel=1e-4)
    assert norms[f"{AFTER}/clip_gradients"] == norms[AFTER] == pytest.approx(0.01, rel=1e-4)
    scaled = loop_of([Times("same", 1.0)], loss_scale=LossScale())  # no norm includes the loss scale
    scaled.run(0, 1)
    assert norms_of(scaled) == dict.fromkeys([BEFORE, f"{AFTER}/same", AFTER], pytest.approx(before, rel=1e-4))


class MeasuresTheStep(StatelessHook):
    def measure(self, context):
        return {f"{self.name}/step": tf.cast(context.step, tf.float32)}


def test_report_averages_norms_and_measures_over_sampled_steps():
    each = moved(steps=9)
    loop = loop_of([MeasuresTheStep("watches")], sample_every=3)
    for start, steps, sampled in ((0, 7, [0, 3, 6]), (7, 1, [7]), (8, 2, [8, 9])):
        loop.run(start, steps)
        assert loop.accumulators.read()["watches/step"] == pytest.approx(np.mean(sampled))
        if start < 8:
            assert norms_of(loop)[BEFORE] == pytest.approx(np.mean([each[step] for step in sampled]), rel=1e-4)
        loop.accumulators.reset()
    loop.run(10, 2)
    loop.run(12, 3)  # the same report
    assert loop.accumulators.read()["watches/step"] == pytest.approx(np.mean([10, 12]))
