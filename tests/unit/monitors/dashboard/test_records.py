"""Histograms made on the host: the counts of NumPy, and TensorBoard's form of them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tensorboard.plugins.histogram import summary_v2
from tensorboard.util import tensor_util

from hooks.monitors.dashboard.records import BUCKETS, histogram, histogram_summary

finite = st.floats(-1e6, 1e6, width=32)


@given(arrays(np.float32, st.integers(1, 60), elements=finite))
def test_all_values_are_counted_between_the_smallest_and_the_largest(values) -> None:
    parts = histogram(values)
    assert parts.shape == (BUCKETS, 3)
    assert parts[:, 2].sum() == values.size
    assert parts[0, 0] == values.min()
    assert parts[-1, 1] == values.max()
    np.testing.assert_array_equal(parts[1:, 0], parts[:-1, 1])


@pytest.mark.parametrize(
    "values", [np.random.default_rng(0).normal(size=1000), np.full(7, 0.25), np.array([-1.0, 1.0])]
)
def test_it_is_the_histogram_of_tensorboard_itself(values) -> None:
    (value,) = summary_v2.histogram_pb("weights", values).value
    np.testing.assert_allclose(histogram(values), tensor_util.make_ndarray(value.tensor), atol=1e-12)


def test_values_that_are_not_finite_are_left_out() -> None:
    parts = histogram(np.array([np.nan, 1.0, np.inf, 2.0, -np.inf]))
    assert parts[:, 2].sum() == 2
    assert (parts[0, 0], parts[-1, 1]) == (1.0, 2.0)
    assert histogram(np.full(3, np.nan)).shape == histogram(np.zeros([0])).shape == (0, 3)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16, tf.int8, tf.bool])
def test_other_dtypes_are_counted_as_well(dtype) -> None:
    values = tf.cast(tf.constant([0, 0, 1]), dtype).numpy()
    parts = histogram(values)
    assert parts[0, 2] == 2
    assert parts[-1, 2] == 1


def test_large_halves_do_not_overflow() -> None:
    assert histogram(np.full(100, 60_000.0, np.float16))[-1].tolist() == [60_000.0, 60_000.0, 100.0]


@pytest.mark.parametrize("values", [[1.0, np.nextafter(np.float32(1.0), np.float32(2.0))], [-3e38, 3e38]])
def test_floats_that_lie_side_by_side_or_at_the_ends_of_their_range_are_counted(values) -> None:
    values = np.array(values, np.float32)
    parts = histogram(values)
    assert (parts[0, 2], parts[-1, 2]) == (1, 1)
    assert (parts[0, 0], parts[-1, 1]) == tuple(values.astype(np.float64))


def test_the_record_is_the_plugins() -> None:
    (value,) = histogram_summary({"weights/dense/kernel/latent": np.ones([2, 3])}).value
    assert value.tag == "weights/dense/kernel/latent"
    assert value.metadata.plugin_data.plugin_name == "histograms"
    assert tensor_util.make_ndarray(value.tensor)[:, 2].sum() == 6
