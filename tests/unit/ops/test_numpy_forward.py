"""A forward pass of NumPy: what it may return, and what it gets."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.ops.override_gradient import override_gradient
from tests.support.gradients import X


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
