"""The Bernoulli draw and the gate: values, gradients against the closed form and an estimate, dtypes, edges."""

from __future__ import annotations

import functools
import math

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.trainer.ops.estimators import bernoulli_gate, bernoulli_through, ste_gate, zero_unless

DRAWS = 4000
SEED = (3, 5)


def maps(batch: int = 4, channels: int = 3, dtype=np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Return features [batch, 3, 2, channels] without a zero, and probabilities [batch, 3, 2, 1]."""
    generator = np.random.default_rng(0)
    features = generator.uniform(0.5, 2.0, (batch, 3, 2, channels)) * generator.choice([-1, 1], (batch, 3, 2, channels))
    return features.astype(dtype), generator.uniform(0.1, 0.9, (batch, 3, 2, 1)).astype(dtype)


def gate(features, probability, seed=SEED, *, jit: bool = False) -> tuple[np.ndarray, np.ndarray]:
    function = tf.function(bernoulli_gate, autograph=False, jit_compile=jit)
    y, mask = function(tf.constant(features), tf.constant(probability), seed=tf.constant(seed, tf.int32))
    return y.numpy(), mask.numpy()


def gradients(features, probability, upstream, *, jit: bool = False, seed=SEED) -> tuple[np.ndarray, ...]:
    """Return dL/dx, dL/dA and r of one call, for L = sum of upstream * y."""

    def compute(x, given, weight):
        y, mask = bernoulli_gate(x, given, seed=tf.constant(seed, tf.int32))
        return (*tf.gradients(y, [x, given], grad_ys=weight), mask)

    function = tf.function(compute, autograph=False, jit_compile=jit)
    return tuple(value.numpy() for value in function(*map(tf.constant, (features, probability, upstream))))


def in_float64(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


@pytest.mark.parametrize(
    ("dtype", "other", "tolerance", "jit"),
    [
        (np.float32, np.float32, 1e-6, False),
        (np.float16, np.float16, 2**-10, False),
        (ml_dtypes.bfloat16, np.float32, 1e-6, True),  # bfloat16 features beside an attention map in float32
    ],
)
def test_gradients_are_the_closed_form_with_the_draw_of_the_forward(dtype, other, tolerance: float, jit: bool):
    features, _ = maps(dtype=dtype)
    _, probability = maps(dtype=other)
    upstream = np.random.default_rng(1).normal(size=features.shape).astype(dtype)
    to_features, to_probability, mask = gradients(features, probability, upstream, jit=jit)
    assert to_features.dtype == dtype
    assert to_probability.dtype == mask.dtype == other
    x, weight, r = in_float64(features, upstream, mask)
    assert set(np.unique(r)) == {0.0, 1.0}
    np.testing.assert_array_equal(to_features.astype(np.float64), r * weight)
    expected = (x * weight).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(to_probability.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_the_gate_multiplies_by_one_mask_for_all_channels():
    features, probability = maps()
    y, mask = gate(features, probability)
    assert mask.shape == probability.shape
    assert set(np.unique(mask)) == {0.0, 1.0}
    np.testing.assert_array_equal(y, mask * features)  # nothing is divided by A
    np.testing.assert_array_equal(bernoulli_through(probability, seed=tf.constant(SEED)).numpy(), mask)
    probability[1, 2, 0, 0] = np.nan  # a comparison would hide it
    y, mask = gate(features, probability)
    assert (np.isnan(mask).sum(), np.isnan(y).sum()) == (1, features.shape[-1])


def test_the_gradient_of_the_mean_over_draws_is_the_closed_form():
    """Estimate dE[L]/dA by a finite difference of means over draws, with the same noise on both sides."""
    features, probability = maps(batch=1)
    upstream = np.random.default_rng(2).normal(size=features.shape).astype(np.float32)
    half = np.float32(0.1)
    repeated = np.repeat(features, DRAWS, axis=0)
    means = [
        (gate(repeated, np.repeat(probability + side, DRAWS, axis=0))[0] * upstream).sum(axis=-1).mean(axis=0)
        for side in (half, -half)
    ]
    estimate = (means[0] - means[1]) / (2 * half)
    _, to_probability, _ = gradients(features, probability, upstream)
    deviation = np.abs(to_probability[0, ..., 0]) * np.sqrt((1 - 2 * half) / (2 * half * DRAWS))
    np.testing.assert_array_less(np.abs(estimate - to_probability[0, ..., 0]), 4.5 * deviation + 1e-6)


def test_examples_positions_and_seeds_are_drawn_apart():
    half = np.full((500, 3, 2, 1), 0.5, np.float32)
    ones = np.ones((500, 3, 2, 4), np.float32)
    _, mask = gate(ones, half)
    assert len(np.unique(mask.reshape(500, -1), axis=0)) > 50  # of 64 patterns: no mask is shared by the batch
    correlations = np.corrcoef(mask.reshape(500, -1), rowvar=False) - np.eye(6)
    assert np.abs(correlations).max() < 0.2
    np.testing.assert_array_equal(gate(ones, half)[1], mask)
    for other in ((3, 6), (4, 5)):
        assert 0.4 < np.mean(gate(ones, half, other)[1] != mask) < 0.6


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_zero_is_never_drawn_one_always_and_other_rates_as_often_as_asked(dtype):
    x = np.ones((100_000, 1, 1, 1), dtype)
    for rate in (0.0, 1 / 512, 255 / 256, 1.0):
        asked = np.full_like(x, rate)
        bound = 5 * np.sqrt(rate * (1 - rate) / x.size)
        assert abs(gate(x, asked)[1].astype(np.float64).mean() - rate) <= bound


def test_channels_are_summed_in_float32_and_a_loss_on_the_mask_counts():
    features = np.ones((1, 1, 1, 4096), ml_dtypes.bfloat16)
    _, to_probability, _ = gradients(features, np.full((1, 1, 1, 1), 0.5, ml_dtypes.bfloat16), features)
    assert to_probability.item() == 4096.0  # summed one by one in bfloat16, it would stop at 256
    x, given = map(tf.constant, maps())
    with tf.GradientTape() as tape:
        tape.watch(given)
        y, mask = bernoulli_gate(x, given, seed=tf.constant(SEED, tf.int64))
        loss = tf.reduce_sum(y) + 7.0 * tf.reduce_sum(mask)  # the draw itself passes its gradient straight through
    np.testing.assert_allclose(tape.gradient(loss, given), x.numpy().sum(-1, keepdims=True) + 7.0, rtol=1e-6)


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
