from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.ops.pass_within import pass_within


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("limit", [0.5, 1.0, math.inf])
def test_the_limit_itself_passes_and_the_next_number_does_not(dtype: tf.DType, limit: float) -> None:
    kind = dtype.as_numpy_dtype
    beyond = np.nextafter(kind(limit), kind(math.inf))
    x = tf.constant(np.array([limit, -limit, beyond, -beyond, 0.0, math.nan], kind))
    passed = pass_within(tf.constant([1, 2, 3, 4, 5, 6], dtype), x, limit).numpy().astype(float)
    outer = [3.0, 4.0] if math.isinf(limit) else [0.0, 0.0]  # nothing lies beyond infinity
    np.testing.assert_array_equal(passed, [1.0, 2.0, *outer, 5.0, 0.0])


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=70), st.floats(0.125, 3, width=32))
def test_it_is_the_selection_that_it_replaces(values: list[float], limit: float) -> None:
    x = tf.constant(values, tf.float32)
    upstream = tf.sin(7.0 * x) + 2.0
    expected = np.where(np.abs(np.float32(values)) <= np.float32(limit), upstream.numpy(), 0.0)
    np.testing.assert_array_equal(pass_within(upstream, x, limit), expected)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_cancelled_is_zero_and_what_passes_stays_as_it_is(bad: float) -> None:
    passed = pass_within(tf.constant([bad, bad]), tf.constant([2.0, 0.5]), 1.0).numpy()
    assert passed[0] == 0.0
    np.testing.assert_array_equal(passed[1], bad)
