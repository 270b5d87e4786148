"""A forward pass with a backward pass of one's own: gradients, and the checks of what is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.ops.override_gradient import override_gradient
from tests.support.gradients import WAYS, X, cube, cube_of_numpy, with_gradients, with_tape


@pytest.mark.parametrize("way", WAYS)
def test_the_forward_is_forwards_and_the_gradient_backwards(way: str) -> None:
    for op in (cube, cube_of_numpy)[: 1 if "xla" in way else 2]:
        y, gradient = WAYS[way](op, X)
        assert (y.dtype, y.shape) == (tf.float32, X.shape)
        np.testing.assert_allclose(y, X**3, rtol=1e-6)
        np.testing.assert_allclose(gradient, 5.0 * X, rtol=1e-6)


@pytest.mark.parametrize("op", [cube, cube_of_numpy])
def test_half_precision_stays_and_an_upstream_of_slices_arrives_whole(op: Callable[..., Any]) -> None:
    y, gradient = with_gradients(op, tf.cast(X, "bfloat16"))
    assert y.dtype == gradient.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(gradient, tf.float32), 5.0 * X, rtol=1e-2)
    _, gradient = with_gradients(lambda x: tf.gather(op(x), [1]), X)
    np.testing.assert_allclose(gradient, [[0, 0, 0], 5.0 * X[1]])


@pytest.mark.parametrize("op", [cube, cube_of_numpy])
def test_the_gradient_goes_through_a_traced_loop(op: Callable[..., Any]) -> None:
    def loop(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda step, _: step < 2, lambda step, y: (step + 1, op(y)), [0, x])[1]

    y, gradient = with_gradients(loop, X)
    np.testing.assert_allclose(y, X**9, rtol=1e-5)
    np.testing.assert_allclose(gradient, 5.0 * X**3 * 5.0 * X, rtol=1e-5)


def test_every_input_gets_its_own_gradient_and_integers_none() -> None:
    def backward(upstream: Any, inputs: Any, outputs: Any) -> list[Any]:
        rows = inputs[1]
        return [tf.scatter_nd(rows[:, None], upstream, [2, 3]), None, 7.0 * tf.reduce_sum(upstream, axis=0)]

    def gather(values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        rows = tf.constant([1, 1])
        return override_gradient(lambda v, r, b: tf.gather(v, r) + b, backward, [values, rows, bias])

    values, bias = tf.constant(X), tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch([values, bias])
        y = gather(values, bias)
    to_values, to_bias = tape.gradient(y, [values, bias])
    np.testing.assert_allclose(y, X[[1, 1]] + bias.numpy())
    np.testing.assert_array_equal(to_values, [[0, 0, 0], [2, 2, 2]])
    np.testing.assert_array_equal(to_bias, [14, 14, 14])
    traced = tf.function(lambda v, b: tf.gradients(gather(v, b), [v, b]), autograph=False)(values, bias)
    np.testing.assert_array_equal(traced[0], to_values)
    np.testing.assert_array_equal(traced[1], to_bias)


def test_several_outputs_have_upstream_gradients_and_an_unused_one_zero() -> None:
    def both(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return override_gradient(
            lambda x: (x + 1.0, 2.0 * x), lambda upstream, inputs, outputs: 3.0 * upstream[0] + 10.0 * upstream[1], [x]
        )

    factor = tf.Variable(2.0, trainable=False)  # which may be read, and outputs are seen
    _, gradient = with_tape(lambda x: override_gradient(lambda x: x * factor, lambda u, i, o: u * factor * o, [x]), X)
    np.testing.assert_array_equal(gradient, 4.0 * X)
    for way in (with_tape, with_gradients):
        _, gradient = way(lambda x: 2.0 * both(x)[0] + both(x)[1], X)
        np.testing.assert_array_equal(gradient, np.full_like(X, 16.0))
        _, gradient = way(lambda x: both(x)[1], X)
        np.testing.assert_array_equal(gradient, np.full_like(X, 10.0))


def test_a_variable_among_the_inputs_gets_its_gradient() -> None:
    variable, weight = tf.Variable(X), keras.Variable(X)
    for given, source in ((variable, variable), (weight, weight.value)):
        with tf.GradientTape() as tape:
            y = cube(given)
        np.testing.assert_allclose(tape.gradient(y, source), 5.0 * X)


def product(backward: Callable[..., Any], forward: Callable[..., Any] = tf.multiply) -> Callable[[tf.Tensor], Any]:
    return lambda x: override_gradient(forward, backward, [x, x], name="mine")


def one(forward: Callable[[tf.Tensor], Any], backward: Any = lambda u, i, o: u) -> Callable[[tf.Tensor], Any]:
    return lambda x: override_gradient(forward, backward, [x], name="mine")


WEIGHT = tf.Variable(2.0, name="weight")
WRONG = {
    "too few": (product(lambda u, i, o: [u]), "returned 1 gradient for 2 inputs"),
    "too many": (product(lambda u, i, o: [u, u, u]), "returned 3 gradients for 2 inputs"),
    "none": (product(lambda u, i, o: [u, None]), "returned None for input 2"),
    "shape": (product(lambda u, i, o: [u, u[:, :1]]), r"\[2, 1\] for input 2"),
    "dtype": (product(lambda u, i, o: [u, tf.cast(u, tf.float64)]), "returned float64"),
    "integer forward": (one(lambda x: tf.cast(x, tf.int32)), "'mine' returned int32"),
    "array": (one(lambda x: X), "'mine' returned a ndarray.*numpy_output"),
    "nothing": (one(lambda x: ()), "'mine' returned nothing"),
    "variable in forward": (one(lambda x: x * WEIGHT), "forward pass of 'mine' reads .* weight"),
    "variable in backward": (one(lambda x: x, lambda u, i, o: u * WEIGHT), "backward pass of 'mine' reads .* weight"),
    "unknown surrogate": (lambda x: cube(x, surrogate="forwards"), "'forwards'"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_names_the_function_and_the_input(fault: str) -> None:
    function, match = WRONG[fault]
    for way in ("tape", "tf.gradients"):
        with pytest.raises(UserError, match=match):
            WAYS[way](function, X)


def test_a_shape_that_only_the_run_knows_is_checked_there() -> None:
    mean = one(lambda x: 2.0 * x, lambda u, i, o: tf.reduce_mean(u, axis=0, keepdims=True))
    spec = [tf.TensorSpec([None, 3])]
    function = tf.function(lambda x: tf.gradients(mean(x), x)[0], autograph=False, input_signature=spec)
    assert function(X[:1]).shape == (1, 3)  # there, one row is right
    with pytest.raises(tf.errors.InvalidArgumentError, match="backward pass of .*mine.* returned another shape"):
        function(X)
    n = tf.constant(3)
    with pytest.raises(UserError, match="input 2 of 2, int32"):
        with_gradients(lambda x: override_gradient(lambda x, n: x + 1.0, lambda u, i, o: [u, u], [x, n]), X)
    with pytest.raises(UserError, match="no float input"):
        override_gradient(lambda n: tf.cast(n, tf.float32), lambda u, i, o: [None], [n])


def test_a_tensor_from_outside_is_refused_unless_it_is_declared() -> None:
    def using(outer: Callable[[tf.Tensor], tf.Tensor], declared: bool = False, backward: bool = False) -> Any:
        def function(x: tf.Tensor) -> tf.Tensor:
            other = outer(x)
            step = (lambda x: x, lambda u, i, o: u * other) if backward else (lambda x: x + other, lambda u, i, o: u)
            return override_gradient(*step, [x], constants=[other] if declared else [])

        return function

    def looped(x: tf.Tensor) -> tf.Tensor:
        inner = using(lambda _: 3.0 * x, declared=True)
        return tf.while_loop(lambda step, _: step < 2, lambda step, y: (step + 1, inner(y)), [0, x])[1]

    triple = lambda x: 3.0 * x  # noqa: E731
    for function in (using(triple), using(triple, backward=True)):
        with pytest.raises(UserError, match="uses the tensor mul:0.* of the outer graph"):
            with_gradients(function, X)
    with_gradients(using(triple, declared=True), X)
    with_gradients(using(lambda x: tf.stop_gradient(3.0 * x)), X)
    with_tape(using(triple), X)  # eagerly it has its value
    y, gradient = with_gradients(looped, X)
    np.testing.assert_allclose(y, 7.0 * X)
    np.testing.assert_array_equal(gradient, np.ones_like(X))
