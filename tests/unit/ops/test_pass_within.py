from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.ops.estimators import ste_gate


@pytest.mark.parametrize(
    ("dtype", "limit"), [(tf.float16, 0.5), (tf.bfloat16, 1.0), (tf.float32, 1.0), (tf.float32, math.inf)]
)
def test_the_limit_itself_passes_and_the_next_number_does_not(dtype: tf.DType, limit: float) -> None:
    kind = dtype.as_numpy_dtype
    beyond = np.nextafter(kind(limit), kind(math.inf))
    x = tf.constant(np.array([limit, -limit, beyond, -beyond, 0.0, math.nan], kind))
    passed = ste_gate(tf.constant([1, 2, 3, 4, 5, 6], dtype), x, limit).numpy().astype(float)
    outer = [3.0, 4.0] if math.isinf(limit) else [0.0, 0.0]  # nothing lies beyond infinity
    np.testing.assert_array_equal(passed, [1.0, 2.0, *outer, 5.0, 0.0])


def test_what_is_cancelled_is_zero_and_what_passes_stays_as_it_is() -> None:
    for bad in (math.inf, -math.inf, math.nan):
        np.testing.assert_array_equal(ste_gate(tf.constant([bad, bad]), tf.constant([2.0, 0.5]), 1.0), [0.0, bad])
