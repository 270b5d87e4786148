"""Errors of Python inside a graph, and XLA beside Python."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import BATCH, CLASSES, FEATURES, toy_batch, toy_loop
from trainer.errors import UserError
from trainer.network import Network
from trainer.ops.override_gradient import override_gradient
from trainer.step.compile import keep_xla_off, python_ops
from trainer.step.python_errors import python_errors


class NumpyTanh(keras.layers.Layer):
    """tanh by NumPy; its gradient is written out. `dtype_of_array` other than float32 is a mistake."""

    def __init__(self, dtype_of_array: str = "float32", **options) -> None:
        super().__init__(**options)
        self.dtype_of_array = dtype_of_array

    def compute_output_shape(self, input_shape):
        return input_shape

    def call(self, inputs):
        return override_gradient(
            lambda x: np.tanh(x).astype(self.dtype_of_array),
            lambda upstream, inputs, outputs: upstream * (1.0 - outputs**2),
            [inputs],
            numpy_output=tf.TensorSpec(inputs.shape, inputs.dtype),
            name="tanh",
        )


def network(dtype: str = "float32") -> Network:
    inputs = keras.Input((FEATURES,))
    hidden = NumpyTanh(dtype, name="numpy_tanh")(keras.layers.Dense(8, name="hidden")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(hidden))
    made = Network("model", model, keras.optimizers.SGD(0.1))
    made.optimizer.build(model.trainable_variables)
    return made


def test_a_user_error_comes_out_of_the_traced_loop_as_it_was_raised() -> None:
    loop = toy_loop(network=network("float64"))
    with pytest.raises(UserError, match="^The NumPy forward of 'tanh' returned float64 .*Expected float32") as caught:
        loop.run(0, 2)
    assert "\n" not in str(caught.value)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError), python_errors():
        tf.debugging.assert_equal(tf.constant(1), tf.constant(2))
    with pytest.raises(KeyError), python_errors():
        raise KeyError


def test_a_layer_of_numpy_trains_like_the_layer_of_tensorflow() -> None:
    ours, other = network(), network()
    plain = keras.Sequential(
        [keras.Input((FEATURES,)), *(keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(CLASSES))]
    )
    other.model = plain
    other.optimizer = keras.optimizers.SGD(0.1)
    other.optimizer.build(plain.trainable_variables)
    plain.set_weights(ours.model.get_weights())
    for each in (ours, other):
        toy_loop(network=each).run(0, 5)
    for left, right in zip(ours.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


def test_ops_that_call_python_are_found_also_inside_branches_and_functions() -> None:
    def call(x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float32, name="mine"), x.shape)

    def graph_of(function) -> tf.Graph:
        return tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph

    inner = tf.function(call, autograph=False)
    assert python_ops(graph_of(call)) == ["mine"]
    assert python_ops(graph_of(inner)) == ["mine"]
    assert python_ops(graph_of(lambda x: tf.cond(x[0] > 0, lambda: call(x), lambda: x))) == ["cond/mine"]
    assert python_ops(graph_of(lambda x: tf.while_loop(lambda x: x[0] > 0, lambda x: [inner(x)], [x]))) == ["mine"]
    assert len(python_ops(graph_of(lambda x: tf.py_function(tf.tanh, [x], tf.float32)))) == 1
    assert python_ops(graph_of(tf.tanh)) == []


def test_the_loop_knows_the_graph_of_its_step_compiled_or_not() -> None:
    for xla in (False, True):
        names = python_ops(toy_loop(network=network(), xla=xla).graph)
        assert len(names) == 1
        assert "numpy_tanh" in names[0]
        assert python_ops(toy_loop(xla=xla).graph) == []


def test_xla_that_was_asked_for_is_refused_and_else_stays_off_with_a_word() -> None:
    with pytest.raises(UserError, match="trainer.compile=on received.*calls Python at a and 1 more ops"):
        keep_xla_off("on", ["a", "b"])
    with pytest.warns(UserWarning, match="XLA stays off: the step calls Python at a, which"):
        keep_xla_off("auto", ["a"])


def test_batches_of_python_do_not_count_as_the_step() -> None:
    def batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
        made = toy_batch(step)
        inputs = tf.numpy_function(lambda x: x, [made["inputs"]], tf.float32)
        return {**made, "inputs": tf.ensure_shape(inputs, [BATCH, FEATURES])}

    loop = toy_loop(batch=batch, xla=True)
    assert python_ops(loop.graph) == []
    assert loop.run(0, 2) == (2, [])
