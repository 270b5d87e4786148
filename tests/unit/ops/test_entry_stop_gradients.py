"""Entry-wise stop_gradient: the value bit for bit, the gradient times the mask."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trainer.ops.entry_stop_gradients import entry_stop_gradients

CORNERS = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-40, 3.4e38, 1.0, -2.5], np.float32)
floats = hnp.arrays(np.float32, 10, elements=st.floats(width=32))


def seed_form(target: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """The classic form of the technique, in a sum of two parts."""
    return tf.stop_gradient(tf.abs(mask - 1) * target) + mask * target


def value_and_gradient(op, target, mask, upstream, *, jit=False):
    @tf.function(autograph=False, jit_compile=jit)
    def run(target, mask, upstream):
        value = op(target, mask)
        return value, tf.gradients(value, target, grad_ys=upstream)[0]

    value, gradient = run(tf.constant(target), tf.constant(mask), tf.constant(upstream))
    return value.numpy(), gradient.numpy()


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", [bool, np.float32, np.int32], ids=["bool", "float", "int"])
def test_the_value_is_the_target_bit_for_bit_whatever_the_mask(dtype, jit: bool):
    for keep in (0, 1):
        mask = np.full(CORNERS.shape, keep).astype(dtype)
        value, gradient = value_and_gradient(entry_stop_gradients, CORNERS, mask, np.ones_like(CORNERS), jit=jit)
        np.testing.assert_array_equal(bits(value), bits(CORNERS))
        np.testing.assert_array_equal(gradient, np.full(CORNERS.shape, keep, np.float32))


@tf.function(autograph=False, input_signature=[tf.TensorSpec([10]), tf.TensorSpec([10], tf.bool), tf.TensorSpec([10])])
def traced(target, mask, upstream):
    value = entry_stop_gradients(target, mask)
    return value, tf.gradients(value, target, grad_ys=upstream)[0]


@given(floats, hnp.arrays(bool, 10))
def test_any_value_stays_and_only_unmasked_entries_get_a_gradient(target, mask):
    upstream = np.linspace(-3, 3, 10, dtype=np.float32)
    value, gradient = (tensor.numpy() for tensor in traced(target, mask, upstream))
    np.testing.assert_array_equal(bits(value), bits(target))
    np.testing.assert_array_equal(gradient, np.where(mask, upstream, 0))


def test_it_agrees_with_the_classic_form_where_that_one_is_exact():
    generator = np.random.default_rng(0)
    target, upstream = generator.normal(size=(2, 4, 3)).astype(np.float32)
    mask = generator.integers(0, 2, size=(4, 3)).astype(np.float32)
    for mine, classic in zip(
        value_and_gradient(entry_stop_gradients, target, mask, upstream),
        value_and_gradient(seed_form, target, mask, upstream),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, classic)


def test_the_classic_form_would_lose_infinity_and_round_under_a_soft_mask():
    target = np.concatenate([[np.inf, -np.inf], np.linspace(0.1, 0.9, 50)]).astype(np.float32)
    mask = np.concatenate([[0.0, 1.0], np.full(50, 0.3)]).astype(np.float32)
    classic, _ = value_and_gradient(seed_form, target, mask, np.ones_like(target))
    assert np.isnan(classic[:2]).all()
    assert np.any(classic[2:] != target[2:])
    value, _ = value_and_gradient(entry_stop_gradients, target, mask, np.ones_like(target))
    np.testing.assert_array_equal(bits(value), bits(target))


def test_a_float_mask_between_0_and_1_scales_the_gradient_and_not_the_value():
    target = np.array([0.1, 0.2, 0.3], np.float32)
    mask = np.array([0.25, 0.0, 2.0], np.float32)
    value, gradient = value_and_gradient(entry_stop_gradients, target, mask, np.full(3, 8.0, np.float32))
    np.testing.assert_array_equal(value, target)
    np.testing.assert_array_equal(gradient, [2.0, 0.0, 16.0])


@pytest.mark.parametrize("dtype", [bool, np.float32], ids=["bool", "float"])
def test_a_stopped_entry_gets_0_even_from_an_infinite_or_undefined_upstream(dtype):
    upstream = np.array([np.nan, np.inf, -np.inf, np.nan], np.float32)
    mask = np.array([0, 0, 0, 1]).astype(dtype)
    _, gradient = value_and_gradient(entry_stop_gradients, np.ones(4, np.float32), mask, upstream)
    np.testing.assert_array_equal(gradient, [0, 0, 0, np.nan])


def test_a_mask_that_broadcasts_stops_whole_rows_and_one_that_enlarges_is_refused():
    target, upstream = np.ones((3, 2), np.float32), np.full((3, 2), 5.0, np.float32)
    _, gradient = value_and_gradient(entry_stop_gradients, target, np.array([[True], [False], [True]]), upstream)
    np.testing.assert_array_equal(gradient, [[5, 5], [0, 0], [5, 5]])
    for shape in ((2, 3), (3, 3), (1, 3, 2), (4, 2)):
        with pytest.raises(ValueError, match=r"Expected one that broadcasts to \(3, 2\)"):
            entry_stop_gradients(tf.constant(target), tf.ones(shape))


def test_unknown_sizes_are_believed():
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec(None, tf.bool)])
    def run(target, mask):
        return tf.gradients(entry_stop_gradients(target, mask), target)[0]

    np.testing.assert_array_equal(run(tf.ones([2, 2]), tf.constant([True, False])), [[1, 0], [1, 0]])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64], ids=lambda dtype: dtype.name)
def test_every_float_dtype_is_kept(dtype):
    target = tf.cast(tf.constant([0.1, -0.0, 3.0]), dtype)
    for mask in (tf.constant([True, False, True]), tf.constant([1.0, 0.0, 1.0])):
        value, gradient = value_and_gradient(entry_stop_gradients, target.numpy(), mask.numpy(), tf.ones_like(target))
        assert value.dtype == gradient.dtype == dtype.as_numpy_dtype
        np.testing.assert_array_equal(bits(value), bits(target.numpy()))
        np.testing.assert_array_equal(gradient.astype(np.float32), [1, 0, 1])


def test_the_mask_gets_no_gradient_and_may_be_a_variable():
    mask = tf.Variable([1.0, 0.0])
    with tf.GradientTape() as tape:
        target = tf.constant([2.0, 3.0])
        tape.watch(target)
        value = entry_stop_gradients(target, mask)
    by_target, by_mask = tape.gradient(value, [target, mask])
    np.testing.assert_array_equal(by_target, [1, 0])
    assert by_mask is None


def test_the_first_layers_weights_stay_and_the_seconds_move():
    """Two linear layers of ones, the loss output - y, gradient descent at 1: what stops is the first weight alone."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(3, 2)).astype(np.float32), generator.normal(size=(3, 4)).astype(np.float32)
    w1, w2 = keras.Variable(np.ones((2, 3))), keras.Variable(np.ones((3, 4)))
    optimizer = keras.optimizers.SGD(1.0)
    with tf.GradientTape() as tape:
        hidden = x @ entry_stop_gradients(w1.value, tf.zeros((2, 3)))
        loss = tf.reduce_sum(hidden @ w2.value - y)
    gradients = tape.gradient(loss, [w1.value, w2.value])
    optimizer.apply(gradients, [w1, w2])
    np.testing.assert_array_equal(w1.numpy(), np.ones((2, 3)))
    expected = 1.0 - np.repeat((x @ np.ones((2, 3))).sum(0)[:, None], 4, axis=1)
    np.testing.assert_allclose(w2.numpy(), expected, rtol=1e-5)
    assert np.all(w2.numpy() != 1.0)
