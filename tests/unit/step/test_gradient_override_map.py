"""The classic way to another gradient, `tf.RegisterGradient` with `gradient_override_map`, and where it counts.

The map belongs to a graph, and `tf.gradients` looks at the mark that it leaves on an op. A gradient tape keeps a record
of its own and does not: TensorFlow 2.21 then gives the ordinary gradient, without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import toy_arrays, toy_loop
from trainer.network import Network

SEVEN = "TestSevenTimes"


@tf.RegisterGradient(SEVEN)
def seven_times(operation: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """Be recognisable: seven times what arrives."""
    return 7.0 * upstream


class MarkedRelu(keras.layers.Layer):
    """relu, whose op the map gives another gradient."""

    def compute_output_shape(self, input_shape):
        return input_shape

    def call(self, inputs):
        with tf.compat.v1.get_default_graph().gradient_override_map({"Relu": SEVEN}):
            return tf.nn.relu(inputs)


class SevenTimes(keras.layers.Layer):
    """relu with the same gradient by `tf.custom_gradient`, which every way honours."""

    def compute_output_shape(self, input_shape):
        return input_shape

    def call(self, inputs):
        return tf.custom_gradient(lambda x: (tf.nn.relu(x), lambda upstream: 7.0 * upstream))(inputs)


def network(layer: keras.layers.Layer) -> Network:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, name="logits")(layer(hidden)))
    made = Network("model", model, keras.optimizers.SGD(1.0))
    made.optimizer.build(model.trainable_variables)
    return made


def trained(layer: keras.layers.Layer, train: Callable[[Network], Any]) -> list[np.ndarray]:
    made = network(layer)
    train(made)
    return made.model.get_weights()


def one_step(made: Network, *, xla: bool = False) -> None:
    toy_loop(network=made, xla=xla).run(0, 1)


def fit(made: Network, *, eagerly: bool = False) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.model.compile(made.optimizer, loss, run_eagerly=eagerly, jit_compile=False)
    inputs, targets = toy_arrays()
    made.model.fit(inputs[:16], targets[:16], batch_size=16, shuffle=False, verbose=0)


def same(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.allclose(a, b, atol=1e-5) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("xla", [False, True])
def test_the_traced_step_honours_the_map(xla: bool) -> None:
    marked = trained(MarkedRelu(), lambda made: one_step(made, xla=xla))
    assert same(marked, trained(SevenTimes(), one_step))
    plain = trained(keras.layers.ReLU(), one_step)
    assert same(marked[2:], plain[2:])  # what comes after it
    assert not same(marked[:2], plain[:2])


@pytest.mark.parametrize("eagerly", [False, True])
def test_keras_fit_ignores_the_map_and_honours_custom_gradient(eagerly: bool) -> None:
    marked = trained(MarkedRelu(), lambda made: fit(made, eagerly=eagerly))
    assert same(marked, trained(keras.layers.ReLU(), lambda made: fit(made, eagerly=eagerly)))
    assert same(trained(SevenTimes(), lambda made: fit(made, eagerly=eagerly)), trained(SevenTimes(), one_step))


def marked_relu(x: tf.Tensor) -> tf.Tensor:
    with tf.compat.v1.get_default_graph().gradient_override_map({"Relu": SEVEN}):
        return tf.nn.relu(x)


def test_a_tape_honours_the_map_only_from_outside_the_function() -> None:
    x = tf.constant([1.0, 2.0])

    def tape(function: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as recorded:
            recorded.watch(x)
            y = function(x)
        return recorded.gradient(y, x)

    np.testing.assert_array_equal(tape(tf.function(marked_relu, autograph=False)), [7, 7])
    np.testing.assert_array_equal(tf.function(lambda: tape(marked_relu), autograph=False)(), [1, 1])
    np.testing.assert_array_equal(tape(marked_relu), [1, 1])


def test_the_map_does_not_reach_into_branches_and_loops() -> None:
    def branch(x: tf.Tensor) -> tf.Tensor:
        with tf.compat.v1.get_default_graph().gradient_override_map({"Relu": SEVEN}):
            y = tf.cond(x[0] > 0, lambda: tf.nn.relu(x), lambda: x)
        return tf.gradients(y, x)[0]

    np.testing.assert_array_equal(tf.function(branch, autograph=False)(tf.constant([1.0, 2.0])), [1, 1])


def test_the_name_is_the_op_type_and_a_wrong_one_is_ignored() -> None:
    def product(x: tf.Tensor, op_type: str) -> tf.Tensor:
        with tf.compat.v1.get_default_graph().gradient_override_map({op_type: SEVEN}):
            y = tf.matmul(x, x) if op_type == "Matmul" else tf.nn.relu(x)
        return tf.gradients(y, x)[0]

    x = tf.eye(2)
    np.testing.assert_array_equal(tf.function(product, autograph=False)(x, "Matmul"), tf.fill([2, 2], 2.0))
    np.testing.assert_array_equal(tf.function(product, autograph=False)(x, "Relu"), tf.fill([2, 2], 7.0))
