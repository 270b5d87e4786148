"""Second derivatives of an overridden gradient: defined, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import X, cube, cube_of_numpy
from trainer.errors import UserError
from trainer.ops.override_gradient import override_gradient


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


SECONDS = ("tape", "tf.gradients", "function")


@pytest.mark.parametrize("way", SECONDS)
@pytest.mark.parametrize("op", [cube, cube_of_numpy])
def test_a_second_derivative_that_is_not_defined_is_refused(way: str, op: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="A second derivative of 'mine' was asked for, and none is defined"):
        second_of(lambda x: op(x, name="mine"), way)


@pytest.mark.parametrize("way", SECONDS)
@pytest.mark.parametrize("op", [cube, cube_of_numpy])
def test_backward_is_differentiated_where_that_is_declared(way: str, op: Callable[..., Any]) -> None:
    second = second_of(lambda x: op(x, second_backward="differentiate"), way)
    np.testing.assert_allclose(second, np.full_like(X, 5.0))


@pytest.mark.parametrize("way", SECONDS)
@pytest.mark.parametrize("numpy", [False, True])
def test_what_backward_makes_of_outputs_is_differentiated_by_the_override_too(way: str, numpy: bool) -> None:
    def squared(x: tf.Tensor) -> tf.Tensor:
        spec = {"numpy_output": tf.TensorSpec(x.shape)} if numpy else {}
        return override_gradient(lambda x: x * x, lambda u, i, o: u * o, [x], second_backward="differentiate", **spec)

    # dy/dx = y, so the second derivative is dy/dx = y again, for upstream gradients of 1.
    np.testing.assert_allclose(second_of(squared, way), X**2, rtol=1e-6)


@pytest.mark.parametrize("way", SECONDS)
def test_a_backward_that_compares_is_not_differentiated_to_an_accidental_zero(way: str) -> None:
    def gated(x: tf.Tensor) -> tf.Tensor:
        return override_gradient(
            lambda x: tf.sign(x),
            lambda u, i, o: tf.where(tf.abs(i[0]) <= 1.0, u, tf.zeros_like(u)),
            [x],
            second_backward="differentiate",
            name="gate",
        )

    with pytest.raises(UserError, match="second derivative of 'gate'.*argument 2 .*such as comparisons"):
        second_of(gated, way)


@pytest.mark.parametrize("way", SECONDS)
def test_an_input_that_backward_does_not_use_has_a_zero(way: str) -> None:
    def through(x: tf.Tensor) -> tf.Tensor:
        return override_gradient(tf.round, lambda u, i, o: u, [x], second_backward="differentiate")

    second = second_of(lambda x: through(x) * x, way)  # d/dx (round(x) + x) = 1 + 1
    np.testing.assert_array_equal(second, np.full_like(X, 2.0))


@pytest.mark.parametrize("way", SECONDS)
def test_a_backward_of_the_backward_is_used_and_checked(way: str) -> None:
    def second_backward(upstream: Any, inputs: Any, outputs: Any) -> list[tf.Tensor]:
        (above,), (given, x, y) = upstream, inputs
        assert len(outputs) == 1
        return [5.0 * x * above, 11.0 * given * above, tf.zeros_like(y)]

    second = second_of(lambda x: cube(x, second_backward=second_backward), way)
    np.testing.assert_array_equal(second, np.full_like(X, 11.0))
    with pytest.raises(UserError, match="The backward pass differentiated of 'cube' returned 1 gradient for 3 inputs"):
        second_of(lambda x: cube(x, second_backward=lambda u, i, o: u[0], name="cube"), way)


def test_third_derivatives_are_defined_or_refused_too() -> None:
    def third(**options: Any) -> Any:
        def traced(x: tf.Tensor) -> Any:
            y = override_gradient(
                lambda x: x**3, lambda u, i, o: u * i[0] ** 3, [x], second_backward="differentiate", **options
            )
            first = tf.gradients(y, x)[0]
            return tf.gradients(tf.gradients(first, x)[0], x)[0]

        return tf.function(traced, autograph=False)(tf.constant(X))

    np.testing.assert_allclose(third(), 6.0 * X, rtol=1e-6)


def test_an_unknown_word_for_the_second_derivative_is_refused() -> None:
    with pytest.raises(UserError, match="Unknown second_backward 'diferentiate'. Did you mean 'differentiate'"):
        cube(tf.constant(X), second_backward="diferentiate")
