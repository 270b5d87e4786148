from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.trainer.ops.estimators import zero_unless

numbers = st.floats(width=32, allow_subnormal=False)  # a device may flush denormal numbers
pairs = st.lists(st.tuples(st.booleans(), numbers, numbers), min_size=24, max_size=24)


def bits(values: tf.Tensor) -> np.ndarray:
    return tf.bitcast(values, tf.int32).numpy()


@functools.cache
def traced(xla: bool):
    def both(kept: tf.Tensor, x: tf.Tensor, gradient: tf.Tensor) -> list[tf.Tensor]:
        found = zero_unless(kept, x), tf.where(kept, x, tf.zeros_like(x))
        return [*found, *(tf.gradients(each, x, gradient)[0] for each in found)]

    specs = [tf.TensorSpec([24], dtype) for dtype in (tf.bool, tf.float32, tf.float32)]
    return tf.function(both, specs, autograph=False, jit_compile=xla)


@pytest.mark.parametrize("xla", [False, True])
@settings(max_examples=40)
@given(entries=pairs)
def test_bits_are_those_of_the_selection_that_it_replaces(xla: bool, entries: list[tuple[bool, float, float]]) -> None:
    found, expected, gradient, expected_gradient = traced(xla)(*map(tf.constant, zip(*entries, strict=True)))
    numeric = ~np.isnan(expected.numpy())
    np.testing.assert_array_equal(np.isnan(found), ~numeric)
    np.testing.assert_array_equal(bits(found)[numeric], bits(expected)[numeric])
    np.testing.assert_array_equal(gradient, expected_gradient)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32])
def test_nothing_of_what_is_masked_is_left_and_signs_of_zero_stay(dtype: tf.DType) -> None:
    values = tf.constant([math.inf, -math.inf, math.nan, -2.0, -0.0], dtype)
    zeros = zero_unless(tf.zeros([5], tf.bool), values).numpy().astype(float)
    np.testing.assert_array_equal(zeros, np.zeros(5))
    assert not np.signbit(zeros).any()
    kept = zero_unless(tf.ones([5], tf.bool), values).numpy().astype(float)
    np.testing.assert_array_equal(kept, [math.inf, -math.inf, math.nan, -2.0, 0.0])
    assert np.signbit(kept[4])
