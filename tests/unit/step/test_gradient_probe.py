"""Overridden gradients beside finite differences and declared surrogates: what is told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.gradient_override import GradientOverride
from tests.support.toy import CLASSES, FEATURES, StatelessHook, ToyObjective, toy_batch, values_of
from trainer.network import Network
from trainer.ops.approx_sign import approx_sign
from trainer.ops.backward import Backward
from trainer.ops.bernoulli_through import bernoulli_gate, bernoulli_through
from trainer.ops.dorefa import dorefa
from trainer.ops.entry_stop_gradients import entry_stop_gradients
from trainer.ops.override_gradient import override_gradient
from trainer.ops.ste_sign import ste_sign
from trainer.ops.ste_tern import ste_tern
from trainer.ops.stochastic_sign import stochastic_sign
from trainer.ops.swish_sign import swish_sign
from trainer.step.gradient_probe import Compared, compare_gradients
from trainer.step.subgraph import recompute
from trainer.step.trainer import Trainer

WRONG_MARK = "TestProbeTwice"


@tf.RegisterGradient(WRONG_MARK)
def twice(operation: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """Be wrong for a tanh."""
    return 2.0 * upstream


class Probe(StatelessHook):
    """Put a function between the latent weights and the network."""

    def __init__(self, function: Callable[[tf.Tensor], Any]) -> None:
        super().__init__("probe")
        self.function = function

    def transform_weights(self, weights, context):
        name = next(each for each in weights if "hidden/kernel" in each)
        return {**weights, name: self.function(weights[name])}


def network_of(model: keras.Model | None = None) -> Network:
    keras.utils.set_random_seed(1)
    if model is None:
        layers = [keras.layers.Dense(8, name="hidden"), keras.layers.Dense(CLASSES, name="logits")]
        model = keras.Sequential([keras.Input((FEATURES,)), *layers], name="toy")
    network = Network("model", model, keras.optimizers.SGD(0.1))
    network.optimizer.build(model.trainable_variables)
    return network


def compared(function: Callable[[tf.Tensor], Any], model: keras.Model | None = None) -> list[Compared]:
    trainer = Trainer([network_of(model)], [ToyObjective()], [Probe(function)], seed=0)
    return compare_gradients(trainer, toy_batch)


def verdicts(function: Callable[[tf.Tensor], Any]) -> dict[str, str]:
    return {each.name: each.verdict for each in compared(function)}


def cube(gradient: Callable[[tf.Tensor], tf.Tensor], **options: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    def backward(upstream: Any, inputs: Any, outputs: Any) -> Any:
        return upstream * gradient(inputs[0])

    return lambda x: override_gradient(lambda x: x**3, backward, [x], name="cube", **options)


CASES: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], str]] = {
    "true": (cube(lambda x: 3.0 * x**2), "exact"),
    "another factor": (cube(lambda x: 2.0 * x**2), "wrong"),
    "one entry in three": (cube(lambda x: 3.0 * x**2 * tf.cast(tf.range(8) % 3 > 0, x.dtype)), "wrong"),
    "not a number": (cube(lambda x: x / 0.0 * 0.0), "wrong"),
    "its surrogate": (cube(tf.cos, surrogate=tf.sin), "surrogate"),
    "not its surrogate": (cube(lambda x: 1.01 * tf.cos(x), surrogate=tf.sin), "wrong"),
    "true, and another surrogate": (cube(lambda x: 3.0 * x**2, surrogate=tf.sin), "wrong"),
    "on purpose": (cube(lambda x: -3.0 * x**2, surrogate=None), "on purpose"),
    "on purpose, and not a number": (cube(lambda x: x / 0.0 * 0.0, surrogate=None), "wrong"),
    "on purpose, and nothing changed": (cube(lambda x: 3.0 * x**2, surrogate=None), "exact"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_is_told_from_another(case: str) -> None:
    function, verdict = CASES[case]
    assert verdicts(function) == {"cube": verdict}


def test_the_distance_is_by_how_much() -> None:
    (found,) = compared(cube(lambda x: 1.5 * x**2, surrogate=None))
    assert found.true == pytest.approx(0.5, abs=0.01)
    (found,) = compared(cube(lambda x: 1.01 * tf.cos(x), surrogate=tf.sin))
    assert found.declared == pytest.approx(0.01, abs=0.001)


def test_the_quantizers_have_the_gradients_of_their_surrogates() -> None:
    seed = tf.constant([1, 2])
    quantizers: list[Callable[[tf.Tensor], tf.Tensor]] = [
        approx_sign,
        ste_sign,
        ste_tern,
        swish_sign,
        lambda x: dorefa(x, k_bit=2, mode="weights"),
        lambda x: stochastic_sign(x, seed=seed),
        lambda x: bernoulli_through(tf.sigmoid(x), seed=seed),
    ]
    for quantize in quantizers:
        (found,) = compared(quantize)
        assert found.verdict == "surrogate"
        assert found.declared < 1e-6


def test_draws_stay_what_they_were_and_every_input_counts() -> None:
    def gate(x: tf.Tensor) -> tf.Tensor:
        maps = tf.reshape(x, [1, FEATURES, 8, 1])
        return tf.reshape(bernoulli_gate(maps, tf.sigmoid(maps), seed=tf.constant([1, 2]))[0], x.shape)

    assert verdicts(gate) == {"bernoulli_gate": "surrogate"}


def test_entries_that_are_stopped_on_purpose_are_no_mistake() -> None:
    mask = tf.constant(np.arange(8) % 2, tf.float32)
    assert verdicts(lambda x: entry_stop_gradients(x, mask)) == {"entry_stop_gradients": "on purpose"}


@pytest.mark.parametrize(("factor", "verdict"), [(3.0, "exact"), (2.0, "wrong")])
def test_a_forward_of_numpy_is_measured(factor: float, verdict: str) -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        spec = tf.TensorSpec(x.shape, x.dtype)
        return override_gradient(
            lambda x: x**3, lambda u, i, o: factor * i[0] ** 2 * u, [x], numpy_output=spec, name="cube"
        )

    assert verdicts(function) == {"cube": verdict}


def test_an_input_that_is_computed_from_another_has_its_own_gradient() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        return override_gradient(
            lambda a, n, b: a * b, lambda u, i, o: [u * i[2], None, u * i[0]], [x, tf.constant(2), 3.0 * x], name="ab"
        )

    assert verdicts(function) == {"ab": "exact"}


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "exact"), (2.0, "undeclared")])
def test_a_custom_gradient_that_declares_nothing_is_found(factor: float, verdict: str) -> None:
    @tf.custom_gradient
    def product(a: tf.Tensor, b: tf.Tensor) -> Any:
        return (a * b, a + b), lambda u, v: (factor * (u * b + v), factor * (u * a + v))

    (found,) = compared(lambda x: tf.add(*product(x, tf.sin(x))))
    assert (found.verdict, found.surrogate) == (verdict, "undeclared")


def test_every_result_of_a_custom_gradient_counts() -> None:
    @tf.custom_gradient
    def both(a: tf.Tensor) -> Any:
        return (3.0 * a, 5.0 * a), lambda u, v: 3.0 * u + 4.0 * v

    assert [each.verdict for each in compared(lambda x: tf.add(*both(x)))] == ["undeclared"]


def test_an_op_that_is_mapped_to_another_gradient_is_found() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.compat.v1.get_default_graph().gradient_override_map({"Tanh": WRONG_MARK}):
            return tf.tanh(x)

    (found,) = compared(function)
    assert (found.verdict, found.op.rpartition("/")[2]) == ("undeclared", "Tanh")


def test_a_network_without_overrides_has_none_to_compare() -> None:
    assert compared(tf.tanh) == []


def test_half_precision_is_not_measured_and_its_surrogate_is() -> None:
    def half(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
        return lambda x: tf.cast(function(tf.cast(x, tf.bfloat16)), x.dtype)

    (found,) = compared(half(cube(lambda x: 3.0 * x**2)))
    assert (found.verdict, found.true) == ("not measured", None)
    assert [each.verdict for each in compared(half(ste_sign))] == ["surrogate"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"layers": "active", "backward": "hard_tanh_through"}, {"on_active": "surrogate"}),
        ({"layers": "active", "backward": "identity"}, {"on_active": "surrogate"}),
        (
            {"layers": ["active", "logits"], "backward": "reverse"},
            {"on_active": "on purpose", "on_logits": "on purpose"},
        ),
        ({"op_type": "Tanh", "backward": "guided_relu"}, {"on, forward/model/active_1/Tanh": "on purpose"}),
        ({"op_type": "Tanh", "backward": "identity"}, {"on, forward/model/active_1/Tanh": "surrogate"}),
    ],
)
def test_what_a_hook_puts_on_layers_and_ops_is_found(options: dict[str, Any], expected: dict[str, str]) -> None:
    assert hook_verdicts(**options) == expected


def hook_verdicts(**options: Any) -> dict[str, str]:
    hook = GradientOverride(**{"layers": None, **options})
    hook.name = "on"
    inputs = keras.Input((FEATURES,))
    active = keras.layers.Activation("tanh", name="active")(keras.layers.Dense(8, name="hidden")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(active), name="toy")
    trainer = Trainer([network_of(hook.rebuild_model(model))], [ToyObjective()], [hook], seed=0)
    found = compare_gradients(trainer, toy_batch)
    return {each.name.replace("toy_1/", ""): each.verdict for each in found}


def test_an_own_backward_of_a_layer_is_wrong_when_it_is_not_what_it_declares() -> None:
    def true(upstream: Any, outputs: Any) -> Any:
        return upstream * (1.0 - outputs**2)

    right = Backward("own", true, ("outputs",), surrogate=tf.tanh)
    assert hook_verdicts(layers="active", backward=right) == {"on_active": "exact"}
    wrong = Backward("own", true, ("outputs",), surrogate=tf.sin)
    assert hook_verdicts(layers="active", backward=wrong) == {"on_active": "wrong"}


def test_nothing_is_trained() -> None:
    network = network_of()
    before = values_of(network)
    compare_gradients(Trainer([network], [ToyObjective()], [Probe(ste_sign)], seed=0), toy_batch)
    for name, value in values_of(network).items():
        np.testing.assert_array_equal(value, before[name])


def test_a_part_of_a_graph_is_computed_again_on_other_values() -> None:
    tf.random.set_seed(None)  # with a seed, every copy of an op draws the same

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None])])
    def function(x: tf.Tensor) -> Any:
        other = 2.0 * x
        drawn = tf.random.uniform(tf.shape(other))
        y = tf.sin(other) + drawn
        z = tf.cond(other[0] > 0, lambda: other + 1.0, lambda: other)
        again = recompute([y, z, x], {id(other): 3.0 * x})
        return y - drawn, again[0] - drawn, again[1], again[2]

    x = np.float32([1.0, 2.0])
    y, again, z, unchanged = function(tf.constant(x))
    np.testing.assert_allclose(y, np.sin(2 * x), atol=1e-6)
    np.testing.assert_allclose(again, np.sin(3 * x), atol=1e-6)
    np.testing.assert_allclose(z, 3 * x + 1)
    np.testing.assert_array_equal(unchanged, x)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "exact"), (1.5, "undeclared")])
@pytest.mark.parametrize("used", [0, 1, 2])
def test_a_result_that_nobody_uses_is_no_fault_of_the_others(used: int, factor: float, verdict: str) -> None:
    @tf.custom_gradient
    def powers(a: tf.Tensor) -> Any:
        s = tf.sin(a)
        return (s**3, s**2, s), lambda u, v, w: factor * (3.0 * s**2 * u + 2.0 * s * v + w) * tf.cos(a)

    assert [each.verdict for each in compared(lambda x: powers(x)[used])] == [verdict]


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "exact"), (2.0, "undeclared")])
def test_an_argument_that_is_computed_from_a_later_one_counts(factor: float, verdict: str) -> None:
    @tf.custom_gradient
    def product(a: tf.Tensor, b: tf.Tensor) -> Any:
        return a * b, lambda u: (factor * u * b, u * a)

    assert [each.verdict for each in compared(lambda x: product(tf.sin(x), x))] == [verdict]
