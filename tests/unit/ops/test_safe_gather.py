"""One answer for indices out of range: eagerly, in a graph and under XLA, with the gradients that belong to it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trainer.errors import UserError
from trainer.ops.safe_gather import safe_gather

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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["zeros", "clip"])
def test_indices_out_of_range_give_what_the_mode_says(way, mode):
    np.testing.assert_array_equal(gather(way, ROWS, MIXED, mode=mode), oracle(ROWS, MIXED, mode, 0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["raise", "zeros", "clip"])
def test_indices_in_range_give_the_bits_of_gather(way, mode):
    for indices in (np.array([4, 0, 0, 3]), np.zeros([0], np.int32), np.array([[1, 2], [2, 1]], np.int16)):
        np.testing.assert_array_equal(gather(way, ROWS, indices, mode=mode), ROWS[indices])


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


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32])
def test_small_and_unsigned_indices_count_as_they_are(dtype):
    many = np.arange(300, dtype=np.float32)
    for mode in ("raise", "zeros", "clip"):
        assert gather("graph", many, np.array([100], dtype), mode=mode) == [100.0]
    assert gather("graph", ROWS[:, 0], np.array([100], dtype), mode="zeros") == [0.0]
    assert gather("graph", ROWS[:, 0], np.array([100], dtype), mode="clip") == [9.0]


def test_the_number_of_rows_may_show_only_when_it_runs():
    traced = tf.function(
        lambda p, i: [safe_gather(p, i, mode=mode, axis=1) for mode in ("zeros", "clip")],
        autograph=False,
        input_signature=[tf.TensorSpec([2, None], tf.float32), tf.TensorSpec([None], tf.int32)],
    )
    for size in (3, 5):
        params, indices = np.ones([2, size], np.float32).cumsum(1), np.array([-1, 2, 4])
        for mode, found in zip(("zeros", "clip"), traced(params, indices), strict=True):
            np.testing.assert_array_equal(found, oracle(params, indices, mode, 1))


@pytest.mark.parametrize("way", ["eager", "graph"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("index", [5, -1])
def test_raise_raises_and_names_the_range(way, dtype, index):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        gather(way, ROWS.astype(dtype), np.array([1, index]))
    message = str(caught.value).replace("[", "").replace("]", "").replace("b'", "").replace("'", "")
    assert "safe_gather: indices lie within" in message
    assert str(index) in message
    assert "expected 0 .." in message


def test_raise_gives_nan_under_xla_that_no_mean_hides():
    found = gather("xla", ROWS, MIXED)
    np.testing.assert_array_equal(found, np.where(KNOWN[:, None], oracle(ROWS, MIXED, "clip", 0), np.nan))
    half = gather("xla", ROWS.astype(np.float16), MIXED)
    assert np.isnan(half).all(axis=1).tolist() == (~KNOWN).tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
def test_what_cannot_be_nan_does_not_compile_in_this_mode(dtype):
    for indices in (np.array([0, 1]), MIXED):
        with pytest.raises(tf.errors.InvalidArgumentError, match="safe_gather_of_integers_cannot_raise_under_xla"):
            gather("xla", ROWS.astype(dtype), indices)
    np.testing.assert_array_equal(gather("xla", ROWS.astype(dtype), [1], mode="zeros"), ROWS[1:2].astype(dtype))


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


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_is_not_finite_spoils_neither_zeros_nor_their_gradient(way):
    spoilt = ROWS.copy()
    spoilt[0] = np.inf, np.nan
    np.testing.assert_array_equal(gather(way, spoilt, np.array([-1, 9]), mode="zeros"), np.zeros([2, 2]))
    np.testing.assert_array_equal(gradient(way, spoilt, np.array([-1, 9]), mode="zeros"), np.zeros([5, 2]))


def test_a_variable_is_read_by_rows_and_trained_by_rows():
    table = tf.Variable(ROWS)
    with tf.GradientTape() as tape:
        found = safe_gather(table, MIXED, mode="clip")
    np.testing.assert_array_equal(found, oracle(ROWS, MIXED, "clip", 0))
    assert isinstance(tape.gradient(found, table), tf.IndexedSlices)


@pytest.mark.parametrize(
    ("params", "indices", "options", "message"),
    [
        (ROWS, [0], {"mode": "zero"}, "Unknown mode 'zero'. Did you mean 'zeros'"),
        (ROWS, [0.0], {}, "indices of dtype float32; expected integers"),
        (ROWS, [True], {}, "indices of dtype bool"),
        (ROWS, np.array([0], np.uint64), {}, "not uint64"),
        (ROWS, [0], {"axis": 2}, r"axis 2 of a tensor of shape \(5, 2\)"),
        (ROWS, [0], {"axis": -3}, "axis -3"),
        (1.0, [0], {}, r"axis 0 of a tensor of shape \(\)"),
        (ROWS[:0], [0], {"mode": "zeros"}, "expected at least one row along axis 0"),
    ],
)
def test_what_cannot_be_gathered_is_refused(params, indices, options, message):
    with pytest.raises(UserError, match=message):
        safe_gather(params, indices, **options)
