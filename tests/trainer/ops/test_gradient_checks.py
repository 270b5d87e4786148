"""A forward pass of NumPy: what it may return, and what it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.ops.override_gradient import override_gradient
from tests.support.gradients import X, cube, cube_of_numpy


def test_an_array_that_is_filled_again_leaves_what_was_returned_before() -> None:
    memory = np.zeros(64 + 16, np.float32)
    start = (-memory.ctypes.data % 64) // 4  # TensorFlow shares memory that is aligned so
    array = memory[start : start + 64]

    def fill(x: np.ndarray) -> np.ndarray:
        array[:] = x
        return array

    @tf.function(autograph=False)
    def twice(x: tf.Tensor) -> list[tf.Tensor]:
        spec = tf.TensorSpec([64], tf.float32)
        first = override_gradient(fill, lambda u, i, o: u, [x], numpy_output=spec)
        with tf.control_dependencies([first]):
            second = override_gradient(fill, lambda u, i, o: u, [x + 1.0], numpy_output=spec)
        with tf.control_dependencies([second]):
            return [tf.identity(first), second]

    first, second = twice(tf.zeros([64]))
    np.testing.assert_array_equal(first, np.zeros(64))
    np.testing.assert_array_equal(second, np.ones(64))


def test_sizes_that_are_not_known_are_restored_as_far_as_they_are() -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 3])])
    def double(x: tf.Tensor) -> tf.Tensor:
        y = override_gradient(
            lambda x: x * np.float32(2), lambda u, i, o: 2.0 * u, [x], numpy_output=tf.TensorSpec([None, 3])
        )
        assert y.shape.as_list() == [None, 3]
        return tf.gradients(y, x)[0]

    np.testing.assert_array_equal(double(X), np.full_like(X, 2.0))


def test_a_wrong_array_is_refused_eagerly_and_in_a_graph() -> None:
    spec = tf.TensorSpec(X.shape, tf.float32)
    for forward, match in (
        (lambda x: x.astype(np.float64), "float64"),
        (lambda x: x[:1], r"\[1, 3\]"),
        (lambda x: x.tolist(), "list"),
        (lambda x: np.full(x.shape, None), "string"),
    ):
        wrong = lambda x, f=forward: override_gradient(f, lambda u, i, o: u, [x], numpy_output=spec, name="w")  # noqa: E731
        with pytest.raises(UserError, match=f"'w' returned .*{match}"):
            wrong(tf.constant(X))
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"UserError: .*'w' returned .*{match}"):
            tf.function(wrong, autograph=False)(tf.constant(X))
    with pytest.raises(UserError, match="1 arrays. Expected 2"):
        override_gradient(lambda x: x, lambda u, i, o: u[0], [tf.constant(X)], numpy_output=[spec, spec])
    with pytest.raises(UserError, match="numpy_output="):
        override_gradient(lambda x: x, lambda u, i, o: u, [tf.constant(X)], numpy_output=(2, 3))
    with pytest.raises(ValueError, match="read-only"):
        override_gradient(lambda x: x.fill(0), lambda u, i, o: u, [tf.constant(X)], numpy_output=spec)


def second_of(function: Callable[[tf.Tensor], tf.Tensor], way: str) -> Any:
    x = tf.constant(X)
    if way == "tf.gradients":

        def traced(x: tf.Tensor) -> Any:
            return tf.gradients(tf.gradients(function(x), x)[0], x)[0]

        return tf.function(traced, autograph=False)(x)
    called = function if way == "tape" else tf.function(function, autograph=False)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = called(x)
        gradient = inner.gradient(y, x)
    return outer.gradient(gradient, x)


SECONDS = ("tf.gradients", "function")


@pytest.mark.parametrize("way", SECONDS)
def test_backward_is_differentiated_where_that_is_declared(way: str) -> None:
    for op in (cube, cube_of_numpy):
        second = second_of(lambda x, op=op: op(x, second_backward="differentiate"), way)
        np.testing.assert_allclose(second, np.full_like(X, 5.0))

    def through(x: tf.Tensor) -> tf.Tensor:
        return override_gradient(tf.round, lambda u, i, o: u, [x], second_backward="differentiate")

    second = second_of(lambda x: through(x) * x, way)  # d/dx (round(x) + x) = 1 + 1
    np.testing.assert_array_equal(second, np.full_like(X, 2.0))

    def squared(x: tf.Tensor) -> tf.Tensor:
        return override_gradient(lambda x: x * x, lambda u, i, o: u * o, [x], second_backward="differentiate")

    # dy/dx = y, so the second derivative is dy/dx = y again, for upstream gradients of 1; and so is the third.
    np.testing.assert_allclose(second_of(squared, way), X**2, rtol=1e-6)
    once = lambda x: tf.gradients(squared(x), x)[0]  # noqa: E731
    np.testing.assert_allclose(second_of(once, "tf.gradients"), X**2, rtol=1e-6)


def test_a_backward_of_the_backward_is_used() -> None:
    def second_backward(upstream: Any, inputs: Any, outputs: Any) -> list[tf.Tensor]:
        (above,), (given, x, y) = upstream, inputs
        assert len(outputs) == 1
        return [5.0 * x * above, 11.0 * given * above, tf.zeros_like(y)]

    second = second_of(lambda x: cube(x, second_backward=second_backward), "tf.gradients")
    np.testing.assert_array_equal(second, np.full_like(X, 11.0))


def gated(x: tf.Tensor) -> tf.Tensor:
    """A comparison is not differentiated to an accidental zero."""
    gate = lambda u, i, o: tf.where(tf.abs(i[0]) <= 1.0, u, tf.zeros_like(u))  # noqa: E731
    return override_gradient(tf.sign, gate, [x], second_backward="differentiate", name="mine")


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x: cube(x, name="mine"), "second derivative of 'mine' was asked for"),
        (lambda x: cube_of_numpy(x, name="mine"), "second derivative of 'mine' was asked for"),
        (gated, "second derivative of 'mine'.*argument 2"),
        (lambda x: cube(x, second_backward=lambda u, i, o: u[0], name="mine"), "'mine' returned 1 gradient for 3"),
        (lambda x: cube(x, second_backward="diferentiate"), "'differentiate'"),
    ],
)
def test_a_second_derivative_that_is_not_defined_is_refused(function: Callable[..., Any], match: str) -> None:
    for way in SECONDS:
        with pytest.raises(UserError, match=match):
            second_of(function, way)
