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

from hookline.trainer.ops.estimators import (
    approx_sign,
    binary_sigmoid,
    binary_sign,
    binary_tanh,
    hard_sigmoid,
    round_through,
    ste_sign,
    straight_through,
    swish_sign,
)

Op = Callable[[tf.Tensor], tf.Tensor]
SIGNS: dict[str, Op] = {
    "binary_sign": binary_sign,
    "binary_tanh": binary_tanh,
    "ste_sign": ste_sign,
    "approx_sign": approx_sign,
    "swish_sign": swish_sign,
}
TRAINED = {name: op for name, op in SIGNS.items() if name != "binary_sign"}
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


@pytest.mark.parametrize(("dtype", "jit"), [(tf.float32, False), (tf.bfloat16, True), (tf.float16, False)])
@pytest.mark.parametrize("name", SIGNS)
@given(x=floats)
def test_a_sign_is_exactly_plus_or_minus_one(name: str, dtype: tf.DType, jit: bool, x: np.ndarray):
    y = compiled(name, dtype, jit)(x)
    assert set(np.unique(y)) <= {-1.0, 1.0}
    received = tf.cast(tf.cast(x, dtype), tf.float64).numpy()
    certain = (np.abs(received) >= SMALLEST_NORMAL[dtype]) | (x == 0)  # denormals may be flushed to 0
    np.testing.assert_array_equal(y[certain], oracle_sign(received)[certain])


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


@pytest.mark.parametrize(("dtype", "jit"), [(tf.float32, False), (tf.bfloat16, True), (tf.float16, False)])
@pytest.mark.parametrize("name", [*SIGNS, "binary_sigmoid"])
def test_zero_has_the_sign_plus_one_nan_stays_nan_and_infinity_has_a_sign(name: str, dtype: tf.DType, jit: bool):
    x = np.full(LENGTH, np.nan, np.float32)
    x[:6] = [0.0, -0.0, 0.01, -0.01, np.inf, -np.inf]
    y = compiled(name, dtype, jit)(x)
    low = 0 if name == "binary_sigmoid" else -1
    np.testing.assert_array_equal(y[:6], [1, 1, 1, low, 1, low])
    assert np.isnan(y[6:]).all()


BEYOND = np.nextafter(np.float32(1), 2)
EDGES = np.float32([0, -0.0, 0.3, -0.3, 1, -1, BEYOND, -BEYOND, 0.99999994, 2, -7, 1e6])


@pytest.mark.parametrize("name", TRAINED)
def test_the_gradient_is_the_closed_form_with_both_ends_inside(name: str):
    upstream = np.linspace(-2, 2, len(EDGES)).astype(np.float32)
    for jit in (False, True):
        received = gradient_of(TRAINED[name], tf.constant(EDGES), tf.constant(upstream), jit=jit)
        np.testing.assert_allclose(received, closed_form(name, EDGES) * upstream, rtol=1e-5, atol=1e-7)
    half = tf.cast([0.0, 0.25, -0.75, 1.0, -1.0, 1.0078125, -1.0078125, 30.0, -2000.0, 6e4], tf.float16)
    expected = closed_form(name, tf.cast(half, tf.float32).numpy())
    np.testing.assert_allclose(gradient_of(TRAINED[name], half, tf.ones_like(half)), expected, rtol=2e-2, atol=1e-3)
    bad = gradient_of(TRAINED[name], tf.constant([np.nan, 2.0]), tf.constant([1.0, np.inf]))
    assert bad[0] == 0
    assert bad[1] == 0 or name == "swish_sign"


def test_each_parameter_and_the_parts_have_their_own_gradients():
    x, ones = tf.constant([0.5, 0.50001, -0.5, -0.6, 0.0]), tf.ones(5)
    assert tf.function(lambda x: tf.gradients(binary_sign(x), x)[0] is None, autograph=False)(x)
    np.testing.assert_array_equal(gradient_of(lambda v: ste_sign(v, clip_value=0.5), x, ones), [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(gradient_of(lambda v: ste_sign(v, clip_value=np.inf), 100 * x, ones), ones)
    for beta in (1.0, 10.0):
        received = gradient_of(lambda v, b=beta: swish_sign(v, beta=b), x, ones)
        np.testing.assert_allclose(received[-1], beta, rtol=1e-6)
    edges = tf.constant(EDGES)
    np.testing.assert_allclose(hard_sigmoid(edges), np.clip((EDGES + 1) / 2, 0, 1), rtol=1e-6)
    for half in (hard_sigmoid, binary_sigmoid):
        np.testing.assert_array_equal(gradient_of(half, edges, tf.ones_like(edges)), 0.5 * (np.abs(EDGES) <= 1))


def test_straight_through_takes_a_value_and_the_gradient_of_another():
    x, upstream = tf.constant([-1.5, 0.5, 1.5, 2.5, 100.2]), tf.constant([1.0, -2.0, 3.0, 0.0, 5.0])
    np.testing.assert_array_equal(round_through(x), [-2, 0, 2, 2, 100])  # half to even
    np.testing.assert_array_equal(gradient_of(round_through, x, upstream), upstream)
    np.testing.assert_array_equal(straight_through(tf.square(x), 0.3 * x), np.square(x))
    received = gradient_of(lambda v: straight_through(tf.square(v), 2.0 * v), x, upstream)
    np.testing.assert_array_equal(received, 2.0 * upstream)
    unit = np.random.default_rng(0).uniform(size=1000).astype(np.float32)
    np.testing.assert_array_equal(straight_through(tf.round(unit), unit), np.round(unit))  # not a bit off
