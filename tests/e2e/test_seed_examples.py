"""Small classic programs of TensorFlow 1, with the values that are claimed for them, beside what does it here.

Each claim is run as it was made, in a graph and a session, and then with the mechanism of this project. Where
TensorFlow 2.21 behaves differently, the test states both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.freeze_layers import FreezeLayers
from hookline.trainer.errors import UserError
from hookline.trainer.network import Network
from hookline.trainer.objective import Objective, ObjectiveOutput
from hookline.trainer.ops.entry_stop_gradients import entry_stop_gradients
from hookline.trainer.ops.estimators import round_through, straight_through
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import build_context

v1 = tf.compat.v1


@contextmanager
def session() -> Iterator[v1.Session]:
    """Open a new graph, and a session of it."""
    with tf.Graph().as_default(), v1.Session() as opened:
        yield opened


def value_and_gradient(function: Callable[[tf.Tensor], tf.Tensor], x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a function's value and gradient in a traced function."""

    def traced(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        y = function(x)
        return y, tf.gradients(y, x)[0]

    y, gradient = tf.function(traced, autograph=False)(tf.constant(x))
    return y.numpy(), gradient.numpy()


def test_f_forward_and_g_backward() -> None:
    x = np.array([-1.2, 0.3, 2.0], np.float32)

    def classic(x: tf.Tensor) -> tf.Tensor:
        t = x**3
        return t + tf.stop_gradient(tf.sin(x) - t)

    for function in (classic, lambda x: straight_through(tf.sin(x), x**3)):
        y, gradient = value_and_gradient(function, x)
        np.testing.assert_allclose(y, np.sin(x), atol=1e-6)
        np.testing.assert_allclose(gradient, 3 * x**2, rtol=1e-6)


def test_rounding_forward_and_the_identity_backward() -> None:
    x = np.array([-1.5, -0.4, 0.5, 0.6, 1.5, 2.5], np.float32)

    def classic(x: tf.Tensor) -> tf.Tensor:
        return x + keras.ops.stop_gradient(keras.ops.round(x) - x)

    for function in (classic, round_through):
        y, gradient = value_and_gradient(function, x)
        np.testing.assert_array_equal(y, [-2, 0, 0, 1, 2, 2])  # half to even
        np.testing.assert_array_equal(gradient, np.ones_like(x))
    assert tf.function(lambda x: tf.gradients(tf.round(x), x), autograph=False)(tf.constant(x)) == [None]


def test_the_gradient_of_some_entries_stops() -> None:
    x = np.array([1.0, -2.0, 3.0, 4.0], np.float32)
    mask = tf.constant([1.0, 0.0, 0.0, 1.0])

    def classic(target: tf.Tensor) -> tf.Tensor:
        other = tf.abs(mask - 1)
        return tf.stop_gradient(other * target) + mask * target

    for function in (classic, lambda target: entry_stop_gradients(target, mask)):
        y, gradient = value_and_gradient(lambda x, function=function: function(x) ** 2, x)
        np.testing.assert_array_equal(y, x**2)
        np.testing.assert_array_equal(gradient, mask * 2.0 * x)


INPUTS = np.array([[0.5, -1.0], [0.25, 1.5], [-1.0, 0.07864934]], np.float32)  # they sum to 0.32864934
TARGETS = np.arange(12, dtype=np.float32).reshape(3, 4)
TRAINED = np.full((3, 4), 0.67135066)


def test_only_what_comes_after_stop_gradient_is_trained() -> None:
    with session() as run:
        x, y = v1.placeholder(tf.float32, [3, 2]), v1.placeholder(tf.float32, [3, 4])
        w1, w2 = tf.Variable(tf.ones([2, 3])), tf.Variable(tf.ones([3, 4]))
        loss = tf.matmul(tf.stop_gradient(tf.matmul(x, w1)), w2) - y
        step = v1.train.GradientDescentOptimizer(1).minimize(loss)
        run.run(v1.global_variables_initializer())
        run.run(step, {x: INPUTS, y: TARGETS})
        np.testing.assert_array_equal(run.run(w1), np.ones([2, 3]))
        np.testing.assert_allclose(run.run(w2), TRAINED, atol=1e-6)


class OutputMinusTarget(Objective):
    """The sum of output - target over a batch, whatever the batch averages."""

    def compute(self, forward: Any, batch: Any) -> ObjectiveOutput:
        """Return the loss."""
        return ObjectiveOutput({"difference": tf.reduce_sum(forward("model", batch["inputs"]) - batch["targets"])})


def two_layers(middle: list[keras.layers.Layer]) -> Network:
    layers = [keras.layers.Dense(n, use_bias=False, kernel_initializer="ones", name=f"w{n - 2}") for n in (3, 4)]
    model = keras.Sequential([keras.Input((2,)), layers[0], *middle, layers[1]])
    network = Network("model", model, keras.optimizers.SGD(1.0))
    network.optimizer.build(model.trainable_variables)
    return network


def test_a_frozen_layer_does_the_same_and_an_accident_is_refused() -> None:
    def loop(network: Network, hooks: list[Any]) -> ChunkLoop:
        for hook in hooks:
            hook.build(build_context(network))
        batch = {"inputs": tf.constant(INPUTS), "targets": tf.constant(TARGETS)}
        return ChunkLoop(Trainer([network], [OutputMinusTarget()], hooks, seed=0), lambda step: batch, xla=False)

    network, hook = two_layers([]), FreezeLayers(layers="w1")
    hook.name = "freeze_layers"
    loop(network, [hook]).run(0, 1)
    w1, w2 = network.model.get_weights()
    np.testing.assert_array_equal(w1, np.ones([2, 3]))
    np.testing.assert_allclose(w2, TRAINED, atol=1e-6)
    with pytest.raises(UserError, match="No gradient reaches .*w1/kernel"):
        loop(two_layers([keras.layers.Lambda(tf.stop_gradient, output_shape=lambda shape: shape)]), [])


PUZZLE: dict[str, tuple[Callable[[Any, Any], Any], list[float]]] = {
    "y = x": (lambda x, added: x, [0, 0, 0, 0, 0]),
    "y = tf.identity(x)": (lambda x, added: tf.identity(x), [1, 2, 3, 4, 5]),
    "y = x_plus_1": (lambda x, added: added, [1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize("is_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("line", PUZZLE)
def test_a_dependency_counts_for_ops_that_are_created_inside_it(line: str, is_resource: bool) -> None:
    make, expected = PUZZLE[line]
    with session() as run:
        x = v1.Variable(0.0, use_resource=is_resource)
        x_plus_1 = v1.assign_add(x, 1)
        with tf.control_dependencies([x_plus_1]):
            y = make(x, x_plus_1)
        run.run(v1.global_variables_initializer())
        assert [float(run.run(y)) for _ in range(5)] == expected


def test_today_a_function_runs_what_stands_in_it_in_its_order() -> None:
    x = tf.Variable(0.0)

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        x.assign_add(1.0)  # nothing depends on it
        return tf.convert_to_tensor(x)

    assert [float(step()) for _ in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["not at all", "dependencies", "fetched"])
def test_moving_averages_move_only_when_they_are_asked_to(how: str) -> None:
    with session() as run:
        batch, weight = tf.constant([1.0, 2.0, 6.0]), v1.Variable(1.0)
        mean = v1.Variable(0.0, trainable=False)
        normalized = batch - tf.reduce_mean(batch)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, mean.assign(tf.reduce_mean(batch)))
        loss, optimizer = tf.reduce_sum((weight * normalized) ** 2), v1.train.GradientDescentOptimizer(0.01)
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(updates if how == "dependencies" else []):
            train = optimizer.minimize(loss)
        run.run(v1.global_variables_initializer())
        run.run([train, *(updates if how == "fetched" else [])])
        assert run.run(mean) == (0.0 if how == "not at all" else 3.0)
        assert run.run(weight) < 1.0
