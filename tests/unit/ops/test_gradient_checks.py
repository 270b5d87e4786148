"""Checks of what forward and backward passes return, and of what they use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import X
from trainer.errors import UserError
from trainer.ops.declared_tensors import watch_declared
from trainer.ops.gradient_checks import check_gradients, check_outputs, describe, is_differentiable
from trainer.ops.second_derivative import differentiate, used_arguments


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (tf.constant(X), "float32 [2, 3]"),
        (tf.TensorSpec([None, 3], tf.bfloat16), "bfloat16 [?, 3]"),
        (tf.TensorSpec(None, tf.int64), "int64 of unknown shape"),
        (tf.constant(True), "bool []"),
    ],
)
def test_a_tensor_in_words(tensor: Any, words: str) -> None:
    assert describe(tensor) == words


def test_complex_numbers_have_gradients_and_strings_have_none() -> None:
    assert is_differentiable(tf.constant(1j))
    assert not is_differentiable(tf.constant("x"))


def test_outputs_are_a_tensor_or_a_tuple_and_each_is_checked() -> None:
    x = tf.constant(X)
    assert check_outputs("mine", x) is x
    found = check_outputs("mine", [x, 2.0 * x])
    assert isinstance(found, tuple)
    assert len(found) == 2
    with pytest.raises(UserError, match="mine returned int32 "):
        check_outputs("mine", (x, tf.constant(1)))
    with pytest.raises(UserError, match="mine returned a float. Expected a tensor, or a tuple of them"):
        check_outputs("mine", [x, 1.0])


def test_a_gradient_may_be_an_array_and_takes_the_shape_of_its_input() -> None:
    (found,) = check_gradients("mine", X, [tf.constant(X)])
    assert tf.is_tensor(found)
    with pytest.raises(UserError, match=r"mine returned 2 gradients for 1 input\. Expected .*: float32 \[2, 3\]\.$"):
        check_gradients("mine", [X, X], [tf.constant(X)])

    def traced(gradient: tf.Tensor) -> tf.Tensor:
        (found,) = check_gradients("mine", gradient, [tf.constant(X)])
        assert found.shape == X.shape
        return found

    function = tf.function(traced, autograph=False, input_signature=[tf.TensorSpec([None, None])])
    np.testing.assert_array_equal(function(X), X)
    with pytest.raises(tf.errors.InvalidArgumentError, match="returned another shape|not compatible"):
        function(X.T)


# What a function uses that it was not given.


def test_of_several_variables_the_first_by_name_is_named_also_eagerly() -> None:
    later, first = tf.Variable(1.0, name="b"), tf.Variable(1.0, name="a")
    with pytest.raises(UserError, match="^mine reads the trainable variable a:0, "), watch_declared("mine", []):
        later + first


def test_only_what_could_need_a_gradient_must_be_declared() -> None:
    def traced(x: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        rows, other = tf.range(n), x + 1.0
        with watch_declared("mine", [x]):
            y = x + tf.cast(tf.reduce_sum(rows), x.dtype)  # integers, and ops that the block makes itself
        with (
            pytest.raises(UserError, match=r"^mine uses the tensor add:0, float32 \[2\], from outside\. Expected it"),
            watch_declared("mine", [x]),
        ):
            tf.cond(n > 0, lambda: other, lambda: x)
        return y

    function = tf.function(traced, autograph=False)
    assert function(tf.constant([1.0, 2.0]), tf.constant(3)).numpy().tolist() == [4.0, 5.0]


# Second derivatives.


def test_a_function_uses_what_its_results_are_computed_from() -> None:
    def function(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tf.square(d)  # leads to nothing
        with tf.control_dependencies([tf.debugging.assert_positive(b)]):
            return tf.identity(a), tf.sign(c)

    given = [tf.constant(X)] * 4
    assert used_arguments(function, given) == [True, True, True, False]


def test_each_float_has_a_derivative_and_integers_have_none() -> None:
    def backward(upstream: tf.Tensor, rows: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (upstream * tf.gather(x, rows) ** 2, 3.0 * upstream)

    x, rows = tf.constant([1.0, 2.0, 4.0]), tf.constant([2, 0])
    tensors = [tf.constant([1.0, 10.0]), rows, x, tf.zeros([2])]
    found = differentiate("mine", backward, tensors, (tf.constant([1.0, 2.0]), tf.constant([0.5, 0.0])))
    to_upstream, to_rows, to_x, to_y = found
    assert to_rows is None
    np.testing.assert_allclose(to_upstream, [16.0 + 1.5, 2.0])
    np.testing.assert_allclose(tf.convert_to_tensor(to_x), [2.0 * 10.0 * 2.0, 0.0, 2.0 * 4.0])
    np.testing.assert_array_equal(to_y, [0.0, 0.0])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_argument_without_a_derivative_is_numbered(place: int) -> None:
    def backward(*tensors: tf.Tensor) -> tuple[tf.Tensor]:
        return (sum(tf.cast(each > 0, each.dtype) if n == place else each for n, each in enumerate(tensors)),)

    with pytest.raises(UserError, match=f"^A second derivative of 'mine' was asked for, .* uses argument {place + 1} "):
        differentiate("mine", backward, [tf.constant(X)] * 3, [tf.ones_like(X)])
