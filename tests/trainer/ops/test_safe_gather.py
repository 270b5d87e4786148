"""One answer for indices out of range: eagerly, in a graph and under XLA, with the gradients that belong to it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hookline.trainer.errors import UserError
from hookline.trainer.ops.safe_gather import safe_gather

WAYS = ("eager", "graph", "xla")
ROWS = np.arange(10, dtype=np.float32).reshape(5, 2) + 1.0
MIXED = np.array([0, 5, -1, 4, 100, -(2**40), 4], np.int64)
KNOWN = (MIXED >= 0) & (MIXED < 5)


def called(way, function, *arguments):
    if way == "eager":
        return function(*arguments)
    return tf.function(function, autograph=False, jit_compile=way == "xla")(*arguments)


def gather(way, params, indices, **options):
    return called(way, lambda p, i: safe_gather(p, i, **options), tf.constant(params), tf.constant(indices)).numpy()


def oracle(params, indices, mode, axis):
    """The definition, by NumPy."""
    size = params.shape[axis]
    taken = np.take(params, np.clip(indices, 0, size - 1), axis=axis)
    if mode == "clip":
        return taken
    known = ((indices >= 0) & (indices < size)).reshape(indices.shape + (1,) * (params.ndim - axis % params.ndim - 1))
    return np.where(known, taken, np.zeros([], params.dtype))


@settings(deadline=None, max_examples=60)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, max_side=4),
    data=st.data(),
    mode=st.sampled_from(["zeros", "clip"]),
    dtype=st.sampled_from([np.float32, np.float16, np.int32, np.uint8, bool, np.complex64]),
)
def test_any_axis_shape_and_dtype(shape, data, mode, dtype):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    params = (np.arange(np.prod(shape)).reshape(shape) + 1).astype(dtype)
    indices = data.draw(hnp.arrays(np.int32, hnp.array_shapes(min_dims=0, max_dims=2), elements=st.integers(-6, 9)))
    found = safe_gather(tf.constant(params), tf.constant(indices), mode=mode, axis=axis).numpy()
    np.testing.assert_array_equal(found, oracle(params, indices, mode, axis))
    assert found.dtype == dtype


def gradient(way, params, indices, **options):
    """Return the gradient of a weighted sum of the gathered rows with respect to the params."""
    weights = np.arange(1, 1 + indices.size, dtype=np.float32)[:, None]

    def compute(params, indices):
        with tf.GradientTape() as tape:
            tape.watch(params)
            total = tf.reduce_sum(safe_gather(params, indices, **options) * weights)
        return tf.convert_to_tensor(tape.gradient(total, params))

    return called(way, compute, tf.constant(params), tf.constant(indices)).numpy()


@pytest.mark.parametrize("way", WAYS)
def test_indices_in_and_out_of_range_give_what_the_mode_says(way):
    for mode in ("zeros", "clip"):
        np.testing.assert_array_equal(gather(way, ROWS, MIXED, mode=mode), oracle(ROWS, MIXED, mode, 0))
    for indices in (np.array([4, 0, 0, 3]), np.zeros([0], np.int32), np.array([[1, 2], [2, 1]], np.int16)):
        np.testing.assert_array_equal(gather(way, ROWS, indices, mode="raise"), ROWS[indices])
    for dtype in (np.int8, np.uint8):  # small and unsigned indices count as they are
        assert gather(way, np.arange(300.0, dtype=np.float32), np.array([100], dtype), mode="raise") == [100.0]
        assert gather(way, ROWS[:, 0], np.array([100], dtype), mode="zeros") == [0.0]
    spoilt = ROWS.copy()
    spoilt[0] = np.inf, np.nan  # it spoils neither zeros nor their gradient
    np.testing.assert_array_equal(gather(way, spoilt, np.array([-1, 9]), mode="zeros"), np.zeros([2, 2]))
    np.testing.assert_array_equal(gradient(way, spoilt, np.array([-1, 9]), mode="zeros"), np.zeros([5, 2]))


def test_raise_raises_and_gives_nan_under_xla_that_no_mean_hides():
    for way, dtype, index in (("eager", np.float32, 5), ("graph", np.int64, -1)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)safe_gather: indices lie within.*{index}"):
            gather(way, ROWS.astype(dtype), np.array([1, index]))
    for dtype in (np.float32, np.float16):
        found = gather("xla", ROWS.astype(dtype), MIXED)
        np.testing.assert_array_equal(found, np.where(KNOWN[:, None], oracle(ROWS, MIXED, "clip", 0), np.nan))
    with pytest.raises(tf.errors.InvalidArgumentError, match="integers_cannot_raise_under_xla"):
        gather("xla", ROWS.astype(np.int32), MIXED)


def test_a_variable_is_trained_by_rows_and_other_arguments_are_refused():
    table = tf.Variable(ROWS)
    with tf.GradientTape() as tape:
        found = safe_gather(table, MIXED, mode="clip")
    np.testing.assert_array_equal(found, oracle(ROWS, MIXED, "clip", 0))
    assert isinstance(tape.gradient(found, table), tf.IndexedSlices)
    for params, indices, options, match in (
        (ROWS, [0], {"mode": "zero"}, "'zeros'"),
        (ROWS, [0.0], {}, "float32"),
        (ROWS, [0], {"axis": 2}, "axis 2"),
        (ROWS[:0], [0], {"mode": "zeros"}, "one row"),
    ):
        with pytest.raises(UserError, match=match):
            safe_gather(params, indices, **options)


@pytest.mark.parametrize("way", WAYS)
def test_each_mode_has_the_gradient_of_what_it_gives(way):
    expected = {"zeros": np.zeros_like(ROWS), "clip": np.zeros_like(ROWS), "raise": np.zeros_like(ROWS)}
    for weight, index in enumerate(MIXED, start=1):
        expected["clip"][np.clip(index, 0, 4)] += weight
        if 0 <= index < 5:
            expected["zeros"][index] += weight
    for mode in ("zeros", "clip"):
        np.testing.assert_array_equal(gradient(way, ROWS, MIXED, mode=mode), expected[mode])
    for weight, index in enumerate(MIXED[KNOWN], start=1):
        expected["raise"][index] += weight
    np.testing.assert_array_equal(gradient(way, ROWS, MIXED[KNOWN]), expected["raise"])
