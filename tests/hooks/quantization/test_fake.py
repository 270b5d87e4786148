"""Fake quantization against NumPy: values, steps, zero points, gradients, ranges."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.quantization.fake import (
    moved_ranges,
    nudged,
    on_grid,
    quantize_activations,
    quantize_averages,
    quantize_weights,
    weight_scales,
)

KERNEL = np.random.default_rng(0).normal(size=(3, 3, 2, 5)).astype(np.float32) * [0.1, 1.0, 3.0, 0.5, 2.0]


@pytest.mark.parametrize(("bits", "axes"), [(2, (-1,)), (4, ()), (8, (-2, -1))])
def test_weights_lie_on_a_symmetric_grid_per_channel(bits: int, axes: tuple[int, ...]) -> None:
    kernel = KERNEL.astype(np.float32)
    found = quantize_weights(tf.constant(kernel), bits, axes).numpy()
    most, exact = 2 ** (bits - 1) - 1, kernel.astype(np.float64)  # narrow: -127 to 127, not -128
    others = tuple(axis for axis in range(kernel.ndim) if axis - kernel.ndim not in axes)
    step = np.abs(exact).max(axis=others, keepdims=True) / most
    np.testing.assert_allclose(found, np.round(exact / step) * step, rtol=1e-5)
    steps = found / weight_scales(tf.constant(kernel), bits, axes).numpy()
    assert np.abs(steps).max() == pytest.approx(most)
    assert on_grid(found, bits, axes)
    assert not on_grid(kernel, bits, axes)


def test_halves_are_rounded_to_even_and_zeros_stay_exact() -> None:
    weights = tf.constant([7.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.0])  # 4 bits: a step is 1
    assert quantize_weights(weights, 4, ()).numpy().tolist() == [7.0, 0.0, 2.0, 2.0, 0.0, -2.0, 0.0]
    channels = tf.constant([[0.0, 1.0], [0.0, -0.3]])
    assert quantize_weights(channels, 8, (-1,)).numpy()[:, 0].tolist() == [0.0, 0.0]


def test_batch_norm_folds_into_a_kernel_with_a_step_per_channel() -> None:
    factors = np.array([2.0, -0.3, 1.0, -5.0, 0.01], np.float32)
    kernel = KERNEL.astype(np.float32)
    inside = quantize_weights(tf.constant(kernel * factors), 8, (-1,)).numpy()
    outside = quantize_weights(tf.constant(kernel), 8, (-1,)).numpy() * factors
    np.testing.assert_allclose(inside, outside, rtol=1e-4)
    whole = quantize_weights(tf.constant(kernel), 8, (), tf.constant(factors)).numpy()
    assert on_grid(whole * factors, 8, ())
    assert not on_grid(whole, 8, ())


def test_weight_gradients_pass_unchanged() -> None:
    kernel, upstream = tf.constant(KERNEL, tf.float32), tf.random.normal(KERNEL.shape)
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        found = quantize_weights(kernel, 3, (-1,))
    np.testing.assert_array_equal(tape.gradient(found, kernel, upstream), upstream)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 6.0), (-0.13, 2.7)])
def test_activation_levels_match_numpy_and_include_zero(bits: int, low: float, high: float) -> None:
    limits = nudged(tf.constant([low, high]), bits)
    most = 2**bits - 1
    step = (high - low) / most
    zero = np.round(-low / step)
    np.testing.assert_allclose(limits, [-zero * step, (most - zero) * step], rtol=1e-5, atol=1e-7)
    values = np.random.default_rng(1).uniform(low - 1.0, high + 1.0, 500).astype(np.float32)
    found = quantize_activations(tf.constant(values), limits, bits).numpy()
    expected = step * (np.clip(np.round(values / step + zero), 0, most) - zero)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert quantize_activations(tf.constant(0.0), limits, bits).numpy() == 0.0
    assert len(np.unique(found)) == 2**bits if bits == 4 else len(np.unique(found)) > 100


def test_activation_gradient_passes_up_to_both_ends_of_the_range() -> None:
    limits = nudged(tf.constant([-1.0, 3.0]), 8)
    low, high = limits.numpy()
    values = tf.constant([low, high, np.nextafter(low, -9), np.nextafter(high, 9), 0.0], tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(values)
        found = quantize_activations(values, limits, 8)
    assert tape.gradient(found, values).numpy().tolist() == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_averages_round_halves_away_from_integer_zero() -> None:
    """As LiteRT does: (sum + n / 2) / n or (sum - n / 2) / n, in int8."""
    limits = nudged(tf.constant([-1.0, 1.55]), 8)
    step = (limits[1] - limits[0]) / 255.0
    sums = np.arange(-128 * 4, 127 * 4 + 1)
    values = tf.constant((sums / 4.0 + 128.0) * step + limits[0], tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(values)
        found = quantize_averages(values, limits, 8)
    expected = np.trunc((sums + np.where(sums > 0, 2, -2)) / 4)
    np.testing.assert_allclose((found - limits[0]) / step - 128.0, expected, atol=1e-3)
    assert tape.gradient(found, values)[1:-1].numpy().min() == 1.0
    ends = tf.stack([limits[0], limits[1], limits[0] - 1.0, limits[1] + 1.0])
    with tf.GradientTape() as tape:
        tape.watch(ends)
        found = quantize_averages(ends, limits, 8)
    assert tape.gradient(found, ends).numpy().tolist() == [1.0, 1.0, 0.0, 0.0]


def test_ranges_contain_zero_and_follow_a_moving_average() -> None:
    before = tf.constant([[0.0, 0.0], [-1.0, 2.0], [0.0, 4.0]])
    seen = tf.constant([[0.5, 3.0], [-2.0, 1.0], [-5.0, -1.0]])
    expected = [[0.0, 3.0], [-1.1, 1.9], [-0.5, 3.6]]
    np.testing.assert_allclose(moved_ranges(before, seen, 0.9), expected, rtol=1e-6)
    limits = nudged(tf.zeros([2]), 8)
    assert quantize_activations(tf.constant([1.0, -2.0]), limits, 8).numpy().tolist() == [0.0, 0.0]
