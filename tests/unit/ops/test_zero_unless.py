from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.ops.zero_unless import zero_unless

numbers = st.floats(width=32, allow_subnormal=False)  # a device may flush denormal numbers
pairs = st.lists(st.tuples(st.booleans(), numbers, numbers), min_size=1, max_size=70)


def bits(values: tf.Tensor) -> np.ndarray:
    return tf.bitcast(values, tf.int32).numpy()


@pytest.mark.parametrize("xla", [False, True])
@settings(deadline=None, max_examples=40)
@given(entries=pairs)
def test_bits_are_those_of_the_selection_that_it_replaces(xla: bool, entries: list[tuple[bool, float, float]]) -> None:
    mask, value, upstream = (tf.constant(each) for each in zip(*entries, strict=True))

    def both(kept: tf.Tensor, x: tf.Tensor, gradient: tf.Tensor) -> list[tf.Tensor]:
        found = zero_unless(kept, x), tf.where(kept, x, tf.zeros_like(x))
        return [*found, *(tf.gradients(each, x, gradient)[0] for each in found)]

    shape = tf.TensorSpec([None], tf.float32)
    function = tf.function(both, [tf.TensorSpec([None], tf.bool), shape, shape], autograph=False, jit_compile=xla)
    found, expected, gradient, expected_gradient = function(mask, value, upstream)
    numeric = ~np.isnan(expected.numpy())
    np.testing.assert_array_equal(np.isnan(found), ~numeric)
    np.testing.assert_array_equal(bits(found)[numeric], bits(expected)[numeric])
    np.testing.assert_array_equal(gradient, expected_gradient)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_nothing_of_what_is_masked_is_left_and_signs_of_zero_stay(dtype: tf.DType) -> None:
    values = tf.constant([math.inf, -math.inf, math.nan, -2.0, -0.0], dtype)
    zeros = zero_unless(tf.zeros([5], tf.bool), values).numpy().astype(float)
    np.testing.assert_array_equal(zeros, np.zeros(5))
    assert not np.signbit(zeros).any()
    kept = zero_unless(tf.ones([5], tf.bool), values).numpy().astype(float)
    np.testing.assert_array_equal(kept, [math.inf, -math.inf, math.nan, -2.0, 0.0])
    assert np.signbit(kept[4])


def test_the_mask_may_be_a_variable_and_broadcasts() -> None:
    mask = tf.Variable([[True], [False]])
    np.testing.assert_array_equal(zero_unless(mask, tf.fill([2, 3], 7.0)), [[7.0] * 3, [0.0] * 3])
