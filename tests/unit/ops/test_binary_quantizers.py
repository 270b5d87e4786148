"""Every binary quantizer: two values exactly, the decided sign of 0, NaN kept, and the closed-form gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trainer.ops.approx_sign import approx_sign
from trainer.ops.binary_sigmoid import binary_sigmoid
from trainer.ops.binary_sign import binary_sign
from trainer.ops.binary_tanh import binary_tanh
from trainer.ops.hard_sigmoid import hard_sigmoid
from trainer.ops.round_through import round_through
from trainer.ops.ste_sign import ste_sign
from trainer.ops.straight_through import straight_through
from trainer.ops.swish_sign import swish_sign

Op = Callable[[tf.Tensor], tf.Tensor]
SIGNS: dict[str, Op] = {
    "binary_sign": binary_sign,
    "binary_tanh": binary_tanh,
    "ste_sign": ste_sign,
    "approx_sign": approx_sign,
    "swish_sign": swish_sign,
}
TRAINED = {name: op for name, op in SIGNS.items() if name != "binary_sign"}
DTYPES = [tf.float32, tf.bfloat16, tf.float16]
LENGTH = 64
SMALLEST_NORMAL = {tf.float32: 1.2e-38, tf.bfloat16: 1.2e-38, tf.float16: 6.2e-5}
CORNERS = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-9, -1e-9, 1e-38, -1e-38, 0.5, -0.5, 3.4e38, -3.4e38, 1.0000001]

floats = hnp.arrays(
    np.float32,
    LENGTH,
    elements=st.one_of(st.sampled_from(CORNERS), st.floats(width=32, allow_nan=False), st.floats(-2, 2, width=32)).map(
        np.float32
    ),
)


@cache
def compiled(name: str, dtype: tf.DType, jit: bool) -> Callable[[np.ndarray], np.ndarray]:
    op = SIGNS.get(name, binary_sigmoid)
    function = tf.function(op, input_signature=[tf.TensorSpec([LENGTH], dtype)], jit_compile=jit, autograph=False)
    return lambda x: tf.cast(function(tf.cast(x, dtype)), tf.float64).numpy()


def oracle_sign(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1.0, -1.0)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", SIGNS)
@given(x=floats)
def test_a_sign_is_exactly_plus_or_minus_one(name: str, dtype: tf.DType, jit: bool, x: np.ndarray):
    y = compiled(name, dtype, jit)(x)
    assert set(np.unique(y)) <= {-1.0, 1.0}
    received = tf.cast(tf.cast(x, dtype), tf.float64).numpy()
    certain = (np.abs(received) >= SMALLEST_NORMAL[dtype]) | (x == 0)  # denormals may be flushed to 0
    np.testing.assert_array_equal(y[certain], oracle_sign(received)[certain])


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@given(x=floats)
def test_binary_sigmoid_is_exactly_zero_or_one(dtype: tf.DType, jit: bool, x: np.ndarray):
    y = compiled("binary_sigmoid", dtype, jit)(x)
    assert set(np.unique(y)) <= {0.0, 1.0}
    np.testing.assert_array_equal(y, 0.5 * (compiled("binary_sign", dtype, jit)(x) + 1))


@pytest.mark.parametrize("name", SIGNS)
def test_the_sign_of_zero_is_plus_one_and_of_a_tiny_number_its_own(name: str):
    x = tf.constant([0.0, -0.0, 1e-9, -1e-9, 1e-30, -1e-30])
    np.testing.assert_array_equal(SIGNS[name](x), [1, 1, 1, -1, 1, -1])


def test_the_round_half_even_form_and_tf_sign_would_fail_the_rule_for_zero():
    x = tf.constant([0.0, 1e-9])
    np.testing.assert_array_equal(2 * round_through(hard_sigmoid(x)) - 1, [-1, -1])
    np.testing.assert_array_equal(tf.sign(x), [0, 1])


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", [*SIGNS, "binary_sigmoid"])
def test_nan_stays_nan_and_infinity_has_a_sign(name: str, dtype: tf.DType, jit: bool):
    x = np.full(LENGTH, np.nan, np.float32)
    x[:2] = [np.inf, -np.inf]
    y = compiled(name, dtype, jit)(x)
    np.testing.assert_array_equal(y[:2], [1, 0 if name == "binary_sigmoid" else -1])
    assert np.isnan(y[2:]).all()


def gradient_of(op: Op, x: tf.Tensor, upstream: tf.Tensor, *, jit: bool = False) -> np.ndarray:
    @tf.function(jit_compile=jit, autograph=False)
    def run(value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        return tf.gradients(op(value), value, grad_ys=weight)[0]

    return tf.cast(run(x, upstream), tf.float64).numpy()


def closed_form(name: str, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    inside = np.abs(x) <= 1
    if name == "approx_sign":
        return np.where(inside, 2 - 2 * np.abs(x), 0)
    if name == "swish_sign":
        scaled = 5 * np.clip(x, -100, 100)
        return 5 * (2 - scaled * np.tanh(scaled / 2)) / (1 + np.cosh(scaled))
    return np.where(inside, 1.0, 0.0)


EDGES = np.array(
    [
        0,
        -0.0,
        0.3,
        -0.3,
        1,
        -1,
        np.nextafter(np.float32(1), 2),
        np.nextafter(np.float32(-1), -2),
        0.99999994,
        2,
        -7,
        1e6,
    ],
    np.float32,
)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("name", TRAINED)
def test_the_gradient_is_the_closed_form_with_both_ends_inside(name: str, jit: bool):
    upstream = np.linspace(-2, 2, len(EDGES)).astype(np.float32)
    received = gradient_of(TRAINED[name], tf.constant(EDGES), tf.constant(upstream), jit=jit)
    np.testing.assert_allclose(received, closed_form(name, EDGES) * upstream, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", TRAINED)
def test_the_gradient_of_half_precision_is_finite_and_the_same(name: str, dtype: tf.DType):
    x = tf.cast([0.0, 0.25, -0.75, 1.0, -1.0, 1.0078125, -1.0078125, 30.0, -2000.0, 6e4], dtype)
    received = gradient_of(TRAINED[name], x, tf.ones_like(x))
    expected = closed_form(name, tf.cast(x, tf.float32).numpy())
    np.testing.assert_allclose(received, expected, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("name", TRAINED)
def test_where_the_gradient_is_cut_an_infinite_upstream_does_not_become_nan(name: str):
    received = gradient_of(TRAINED[name], tf.constant([2.0]), tf.constant([np.inf]))
    assert received[0] == 0 or name == "swish_sign"


@pytest.mark.parametrize("name", TRAINED)
def test_the_gradient_at_nan_is_0(name: str):
    assert gradient_of(TRAINED[name], tf.constant([np.nan]), tf.constant([1.0])) == 0


def test_binary_sign_has_no_gradient():
    x = tf.constant([0.5])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = binary_sign(x)
    assert tape.gradient(y, x) is None


def test_binary_sigmoid_passes_half_of_the_gradient():
    x = tf.constant(EDGES)
    received = gradient_of(binary_sigmoid, x, tf.ones_like(x))
    np.testing.assert_array_equal(received, 0.5 * (np.abs(EDGES) <= 1))


def test_ste_sign_masks_at_its_clip_value_inclusive():
    x = tf.constant([0.5, 0.50001, -0.5, -0.6, 0.0])
    received = gradient_of(lambda value: ste_sign(value, clip_value=0.5), x, tf.ones_like(x))
    np.testing.assert_array_equal(received, [1, 0, 1, 0, 1])
    received = gradient_of(lambda value: ste_sign(value, clip_value=float("inf")), 100 * x, tf.ones_like(x))
    np.testing.assert_array_equal(received, np.ones(5))


def test_swish_sign_peaks_at_beta():
    x = tf.constant([0.0])
    for beta in (1.0, 5.0, 10.0):
        received = gradient_of(lambda value, beta=beta: swish_sign(value, beta=beta), x, tf.ones_like(x))
        np.testing.assert_allclose(received, [beta], rtol=1e-6)


def test_hard_sigmoid_is_the_clipped_line_with_both_ends_in_its_gradient():
    x = tf.constant(EDGES)
    np.testing.assert_allclose(hard_sigmoid(x), np.clip((EDGES + 1) / 2, 0, 1), rtol=1e-6)
    np.testing.assert_array_equal(gradient_of(hard_sigmoid, x, tf.ones_like(x)), 0.5 * (np.abs(EDGES) <= 1))


@given(x=floats)
def test_round_through_rounds_half_to_even_with_the_gradient_of_the_identity(x: np.ndarray):
    x = np.clip(x, -1e6, 1e6)
    np.testing.assert_array_equal(round_through(tf.constant(x)), np.round(x))


def test_round_through_passes_the_gradient_everywhere():
    x = tf.constant([-1.5, 0.5, 1.5, 2.5, 100.2])
    np.testing.assert_array_equal(round_through(x), [-2, 0, 2, 2, 100])
    upstream = tf.constant([1.0, -2.0, 3.0, 0.0, 5.0])
    np.testing.assert_array_equal(gradient_of(round_through, x, upstream), upstream)


def test_straight_through_takes_the_value_of_one_and_the_gradient_of_the_other():
    x = tf.constant([0.25, 2.0])
    received = straight_through(tf.square(x), 2.0 * x)
    np.testing.assert_array_equal(received, [0.0625, 4.0])
    np.testing.assert_array_equal(gradient_of(lambda v: straight_through(tf.square(v), 2.0 * v), x, x), [0.5, 4.0])
