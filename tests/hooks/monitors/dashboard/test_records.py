"""Histograms made on the host: the counts of NumPy, and TensorBoard's form of them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tensorboard.plugins.histogram import summary_v2
from tensorboard.util import tensor_util

from hookline.hooks.monitors.dashboard.records import BUCKETS, histogram, histogram_summary


@given(arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=32)))
def test_all_values_are_counted_between_the_smallest_and_the_largest(values) -> None:
    parts = histogram(values)
    assert (parts.shape, parts[:, 2].sum()) == ((BUCKETS, 3), values.size)
    assert (parts[0, 0], parts[-1, 1]) == (values.min(), values.max())
    np.testing.assert_array_equal(parts[1:, 0], parts[:-1, 1])


def test_it_is_the_histogram_of_tensorboard_itself() -> None:
    for values in (np.random.default_rng(0).normal(size=1000), np.full(7, 0.25), np.array([-1.0, 1.0])):
        (value,) = summary_v2.histogram_pb("weights", values).value
        np.testing.assert_allclose(histogram(values), tensor_util.make_ndarray(value.tensor), atol=1e-12)
    (value,) = histogram_summary({"weights/dense": np.ones([2, 3])}).value
    assert (value.tag, value.metadata.plugin_data.plugin_name) == ("weights/dense", "histograms")


def test_values_that_are_not_finite_are_left_out_and_other_dtypes_counted() -> None:
    parts = histogram(np.array([np.nan, 1.0, np.inf, 2.0, -np.inf]))
    assert (parts[:, 2].sum(), parts[0, 0], parts[-1, 1]) == (2, 1.0, 2.0)
    assert histogram(np.full(3, np.nan)).shape == histogram(np.zeros([0])).shape == (0, 3)
    for dtype in (tf.bfloat16, tf.float16, tf.int8, tf.bool):
        parts = histogram(tf.cast(tf.constant([0, 0, 1]), dtype).numpy())
        assert (parts[0, 2], parts[-1, 2]) == (2, 1)
    assert histogram(np.full(100, 60_000.0, np.float16))[-1].tolist() == [60_000.0, 60_000.0, 100.0]
    for ends in ([1.0, np.nextafter(np.float32(1.0), np.float32(2.0))], [-3e38, 3e38]):
        parts = histogram(np.array(ends, np.float32))
        assert (parts[0, 2], parts[-1, 2]) == (1, 1)
