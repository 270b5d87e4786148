"""A forward pass of NumPy: what it may return, and what it gets."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gradients import X
from trainer.errors import UserError
from trainer.ops.override_gradient import override_gradient

BAD_ARRAYS = {
    "dtype": (lambda x: x.astype(np.float64), r"returned float64 \[2, 3\]. Expected float32 \[2, 3\]"),
    "shape": (lambda x: x[:1], r"returned float32 \[1, 3\]. Expected float32 \[2, 3\]"),
    "list": (lambda x: x.tolist(), "returned a list. Expected a NumPy array"),
    "tensor": (lambda x: tf.constant(x), "returned a .*Tensor. Expected a NumPy array"),
    "none": (lambda x: None, "returned a NoneType. Expected a NumPy array"),
    "objects": (lambda x: np.full(x.shape, None), "returned string.*Expected float32"),
}


@pytest.mark.parametrize("fault", BAD_ARRAYS)
def test_a_wrong_array_is_one_line_eagerly_and_has_the_same_words_in_a_graph(fault: str) -> None:
    forward, message = BAD_ARRAYS[fault]

    def wrong(x: tf.Tensor) -> tf.Tensor:
        spec = tf.TensorSpec(X.shape, tf.float32)
        return override_gradient(forward, lambda u, i, o: u, [x], numpy_output=spec, name="wrong")

    with pytest.raises(UserError, match=f"The NumPy forward of 'wrong' {message}") as caught:
        wrong(tf.constant(X))
    assert "\n" not in str(caught.value)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"UserError: The NumPy forward of 'wrong' {message}"):
        tf.function(wrong, autograph=False)(tf.constant(X))


def test_a_wrong_number_of_arrays_is_refused() -> None:
    specs = [tf.TensorSpec(X.shape), tf.TensorSpec(X.shape)]
    with pytest.raises(UserError, match="returned 1 arrays. Expected 2"):
        override_gradient(lambda x: x, lambda u, i, o: u[0], [tf.constant(X)], numpy_output=specs)


def test_numpy_output_is_checked() -> None:
    for spec in ((2, 3), [], tf.TensorSpec([2], tf.int32)):
        with pytest.raises(UserError, match="received numpy_output="):
            override_gradient(lambda x: x, lambda u, i, o: u, [tf.constant(X)], numpy_output=spec)


def test_a_forward_of_numpy_cannot_change_its_inputs() -> None:
    def change(x: np.ndarray) -> np.ndarray:
        x += 1.0
        return x

    with pytest.raises(ValueError, match="read-only"):
        override_gradient(change, lambda u, i, o: u, [tf.constant(X)], numpy_output=tf.TensorSpec(X.shape, tf.float32))


def test_a_forward_of_numpy_that_fills_one_array_again_leaves_what_it_returned_before() -> None:
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
