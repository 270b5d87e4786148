"""Overridden gradients compared with finite differences and declared surrogates: their verdicts and distances."""

import keras
import pytest
import tensorflow as tf

from hookline.scripts.gradient_probe import compare_gradients
from hookline.trainer.ops import estimators
from hookline.trainer.ops.backward import entry_stop_gradients
from hookline.trainer.ops.override_gradient import override_gradient
from hookline.trainer.step.trainer import Trainer
from tests.support.masking import small_network
from tests.support.toy import FEATURES, StatelessHook, ToyObjective, toy_batch

WRONG_MARK = "TestProbeTwice"


@tf.RegisterGradient(WRONG_MARK)
def twice(operation, upstream):
    return 2.0 * upstream


class Probe(StatelessHook):
    def __init__(self, function):
        super().__init__("probe")
        self.function = function

    def transform_weights(self, weights, context):
        name = next(each for each in weights if "hidden/kernel" in each)
        return {**weights, name: self.function(weights[name])}


def network_of():
    keras.utils.set_random_seed(1)
    return small_network(keras.optimizers.SGD(0.1), units=8)


def compared(function):
    trainer = Trainer([network_of()], [ToyObjective()], [Probe(function)], seed=0)
    return compare_gradients(trainer, toy_batch)


def cube(gradient, **options):
    def backward(upstream, inputs, outputs):
        return upstream * gradient(inputs[0])

    return lambda x: override_gradient(lambda x: x**3, backward, [x], name="cube", **options)


def gate(x):
    maps = tf.reshape(x, [1, FEATURES, 8, 1])
    return tf.reshape(estimators.bernoulli_gate(maps, tf.sigmoid(maps), seed=tf.constant([1, 2]))[0], x.shape)


def mapped(x):
    with tf.compat.v1.get_default_graph().gradient_override_map({"Tanh": WRONG_MARK}):
        return tf.tanh(x)


@tf.custom_gradient
def product(a, b):
    return (a * b, a + b), lambda u, v: (2.0 * (u * b + v), u * a + v)


def powers(used):
    @tf.custom_gradient
    def function(a):
        s = tf.sin(a)
        return (s**3, s**2), lambda u, v: (3.0 * s**2 * u + 3.0 * s * v) * tf.cos(a)

    return lambda x: function(x)[used]  # the unused result does not count against the other


CASES = {
    "true": (cube(lambda x: 3.0 * x**2), "exact"),
    "another factor": (cube(lambda x: 2.0 * x**2), "wrong"),
    "not a number": (cube(lambda x: x / 0.0 * 0.0), "wrong"),
    "its surrogate": (cube(tf.cos, surrogate=tf.sin), "surrogate"),
    "true, and another surrogate": (cube(lambda x: 3.0 * x**2, surrogate=tf.sin), "wrong"),
    "on purpose": (cube(lambda x: -3.0 * x**2, surrogate=None), "on purpose"),
    "a draw stays what it was": (gate, "surrogate"),
    "entries stopped on purpose": (lambda x: entry_stop_gradients(x, tf.range(8.0) % 2.0), "on purpose"),
    "mapped": (mapped, "undeclared"),
    "custom, wrong": (lambda x: tf.add(*product(tf.sin(x), x)), "undeclared"),
    "custom, the right one of two results": (powers(0), "exact"),
    "custom, the wrong one of two results": (powers(1), "undeclared"),
}


def test_each_kind_of_gradient_gets_its_verdict():
    found = compared(lambda x: tf.add_n([function(x) for function, _ in CASES.values()]))
    assert {case: each.verdict for case, each in zip(CASES, found, strict=True)} == {
        case: verdict for case, (_, verdict) in CASES.items()
    }


def test_distance_is_the_relative_error_and_is_zero_for_quantizers():
    seed = tf.constant([1, 2])
    quantizers = [
        lambda x: estimators.stochastic_sign(x, seed=seed),
        lambda x: estimators.dorefa(x, k_bit=2, mode="weights"),
        *(getattr(estimators, name) for name in ("approx_sign", "ste_sign", "ste_tern", "swish_sign")),
    ]
    others = [
        cube(lambda x: 1.5 * x**2, surrogate=None),
        lambda x: tf.cast(cube(lambda x: 3.0 * x**2)(tf.cast(x, tf.bfloat16)), x.dtype),
    ]
    *quantized, scaled, half = compared(lambda x: tf.add_n([each(x) for each in (*quantizers, *others)]))
    assert {each.verdict for each in quantized} == {"surrogate"}
    assert all(each.declared < 1e-6 for each in quantized)
    assert scaled.true == pytest.approx(0.5, abs=0.01)
    assert (half.verdict, half.true) == ("not measured", None)
