"""The gradient override hook changes the gradients of chosen layers or op types, and nothing else."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.gradient_override import GradientOverride
from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.ops.backward import Backward
from tests.support.hooked import built, named
from tests.support.refusals import assert_refused
from tests.support.toy import CLASSES, FEATURES, toy_batch

Gradients = dict[str, np.ndarray]


def hook_on(**options: Any) -> GradientOverride:
    return named(GradientOverride(**{"layers": None, **options}))


def model() -> keras.Model:
    """Return three dense layers with a relu and a branch, with the same weights every time."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((FEATURES,), name="inputs")
    first = keras.layers.Dense(8, name="first")(inputs)
    active = keras.layers.ReLU(name="relu")(first)
    second = keras.layers.Dense(8, activation="tanh", name="second")(active)
    both = keras.layers.Add(name="both")([active, second])
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(both), name="toy")


def gradients_with(hooks: list[GraphHook], given: keras.Model | None = None, step: int = 0) -> Gradients:
    """Return the gradients of a step over the first batch, by the names of the variables; nothing is trained."""
    trainer = built(Network("model", given or model(), keras.optimizers.SGD(1.0)), *hooks)  # of a run of 100 steps

    @tf.function(autograph=False)
    def gradients(number: tf.Tensor) -> dict[str, tf.Tensor]:
        examples = toy_batch(tf.constant(0, tf.int64))
        forward = trainer.forward(number, examples, objective="objective", training=True)
        losses = trainer.losses(trainer.objectives[0], forward, examples).losses
        return trainer.compute_gradients(losses["total"], forward.passes)["model"]

    found = gradients(tf.constant(step, tf.int64))
    return {name.rpartition("toy/")[2]: value.numpy() for name, value in found.items()}


def by_hand(build: Callable[[tf.Tensor, Callable[[str, tf.Tensor], tf.Tensor]], tf.Tensor]) -> Gradients:
    """Return the gradients of a network written by hand: `build(inputs, dense)` returns logits."""
    weights = {f"{layer.name}/{w.name}": tf.constant(w.numpy()) for layer in model().layers for w in layer.weights}

    def dense(name: str, x: tf.Tensor) -> tf.Tensor:
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    batch = toy_batch(tf.constant(0, tf.int64))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = build(batch["inputs"], dense)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits))
    return {name: value.numpy() for name, value in tape.gradient(loss, weights).items()}


def network_with(function: Callable[[tf.Tensor], tf.Tensor], gradient: Callable[..., tf.Tensor]) -> Any:
    """Return a network written by hand in which the relu has another function and gradient."""

    def build(inputs: tf.Tensor, dense: Callable[[str, tf.Tensor], tf.Tensor]) -> tf.Tensor:
        op = tf.custom_gradient(lambda x: (function(x), lambda upstream: gradient(upstream, x)))
        active = op(dense("first", inputs))
        return dense("logits", active + tf.tanh(dense("second", active)))

    return build


CASES: dict[str, tuple[Any, Callable[..., tf.Tensor]]] = {
    "identity": ("identity", lambda g, x: g),
    "guided_relu": ("guided_relu", lambda g, x: tf.where((x > 0) & (g > 0), g, 0.0)),
    "hard_tanh_through": ({"name": "hard_tanh_through", "limit": 0.5}, lambda g, x: tf.where(tf.abs(x) <= 0.5, g, 0.0)),
    "scale": ({"name": "scale", "factor": 3}, lambda g, x: 3.0 * tf.where(x > 0, g, 0.0)),
    "clip": ({"name": "clip", "limit": 0.01}, lambda g, x: tf.clip_by_value(tf.where(x > 0, g, 0.0), -0.01, 0.01)),
}


@pytest.mark.parametrize("case", CASES)
def test_layer_or_op_type_gets_the_gradient_of_the_backward(case: str) -> None:
    backward, gradient = CASES[case]
    expected = by_hand(network_with(tf.nn.relu, gradient))
    places = ({"layers": "relu"}, {"op_type": "Relu"})
    for place in places if case == "guided_relu" else places[:1]:
        found = gradients_with([hook_on(**place, backward=backward)])
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


def test_op_type_changes_the_gradients_of_all_inputs_of_every_op() -> None:
    hook = hook_on(op_type="MatMul", backward={"name": "scale", "factor": 2})
    plain, found = gradients_with([]), gradients_with([hook])
    # Each product doubles gradients, so a kernel's gradient grows with the products from its own to the loss.
    np.testing.assert_allclose(found["logits/bias"], plain["logits/bias"], atol=1e-7)
    np.testing.assert_allclose(found["logits/kernel"], 2 * plain["logits/kernel"], atol=1e-7)
    np.testing.assert_allclose(found["second/bias"], 2 * plain["second/bias"], atol=1e-7)
    np.testing.assert_allclose(found["second/kernel"], 4 * plain["second/kernel"], atol=1e-7)


def test_shared_layer_in_an_inner_model_is_overridden_at_each_call() -> None:
    def twice() -> keras.Model:
        keras.utils.set_random_seed(5)
        inner_input = keras.Input((8,))
        shared = keras.layers.Dense(8, name="shared")
        inner = keras.Model(inner_input, keras.layers.ReLU(name="relu")(shared(shared(inner_input))), name="inner")
        inputs = keras.Input((FEATURES,))
        x = inner(keras.layers.Dense(8, name="first")(inputs))
        return keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(x), name="toy")

    plain = gradients_with([], twice())
    found = gradients_with([hook_on(layers="inner/shared", backward={"name": "scale", "factor": 3})], twice())
    np.testing.assert_allclose(found["first/bias"], 9 * plain["first/bias"], atol=1e-6)
    np.testing.assert_allclose(found["logits/bias"], plain["logits/bias"], atol=1e-7)


def test_all_inputs_of_a_layer_are_overridden() -> None:
    plain, found = gradients_with([]), gradients_with([hook_on(layers="both", backward={"name": "scale", "factor": 3})])
    for name in ("first/kernel", "first/bias", "second/kernel", "second/bias"):
        np.testing.assert_allclose(found[name], 3 * plain[name], atol=1e-6)

    halves = Backward("halves", lambda upstream, inputs: [0.5 * upstream, 5.0 * upstream], ("inputs",))
    found = gradients_with([hook_on(layers="both", backward=halves)])
    np.testing.assert_allclose(found["second/bias"], 5 * plain["second/bias"], atol=1e-6)


def test_unsupported_overrides_are_refused() -> None:
    for options, word in (
        *(
            ({}, "layers"),
            ({"layers": "relu", "op_type": "Relu"}, "op_type applies everywhere"),
            ({"op_type": "not an op"}, "op_type"),
        ),
        *(({"layers": "*", "backward": "revers"}, "revers"), ({"layers": "relus"}, "relus")),
        ({"layers": "*", "backward": {"name": "clip", "limits": 1}}, "limits"),
        ({"op_type": "Matmul"}, "MatMul"),
        ({"layers": "second", "backward": Backward("wrong", lambda upstream: upstream[:, :1])}, "second"),
    ):
        with pytest.raises(UserError, match=word):
            gradients_with([hook_on(**options)])

    class Loop(keras.layers.Layer):
        def call(self, inputs):
            return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, tf.nn.relu(x)), [0, inputs])[1]

    inputs = keras.Input((FEATURES,))
    hidden = Loop(name="loop")(keras.layers.Dense(8, name="first")(inputs))
    given = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(hidden), name="toy")
    assert_refused("loop", gradients_with, [hook_on(op_type="Relu")], given)


# A gradient that rises with the run.


def test_rising_override_changes_only_gradients_before_the_layer() -> None:
    options = {"layers": "second", "backward": {"name": "reverse", "factor": 0.5}}
    gone = {**options, "backward": {"name": "scale", "factor": 0}}
    plain, beside = gradients_with([]), gradients_with([hook_on(**gone)])  # what bypasses the layer keeps its gradient
    for step in (10, 99):
        found = gradients_with([hook_on(**options, rise=10)], step=step)
        risen = 2.0 / (1.0 + np.exp(-10.0 * step / 100)) - 1.0
        for name, value in plain.items():
            expected = beside[name] - 0.5 * risen * (value - beside[name]) if name.startswith("first/") else value
            np.testing.assert_allclose(found[name], expected, atol=1e-6, err_msg=name)
    assert np.abs(plain["first/kernel"] - beside["first/kernel"]).max() > 1e-3
    found = gradients_with([hook_on(**options)])["first/kernel"]  # without a rise it is full from the first step on
    np.testing.assert_allclose(found, 1.5 * beside["first/kernel"] - 0.5 * plain["first/kernel"], atol=1e-6)
    for wrong in ({"rise": -1}, {"backward": "identity", "rise": 10}, {"layers": None, "op_type": "Relu", "rise": 10}):
        assert_refused("rise", hook_on, **{**options, **wrong})
