"""Levels and rounding against the paper's own equations, computed by exhaustive comparison in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.quantization.powers_of_two import level_exponents, nearest_exponent, power_of_two, round_to_levels
from tests.support.power_of_two_oracle import paper_exponents, paper_rounding

FLOATS = st.floats(2.0**-60, 2.0**60, width=32)


def rounded(weights: np.ndarray, exponents: tuple[int, int], *, xla: bool = False) -> np.ndarray:
    function = tf.function(round_to_levels, autograph=False, jit_compile=xla)
    return function(tf.constant(weights), tf.constant(exponents, tf.int32)).numpy()


def test_powers_are_exact_over_the_whole_range_of_float32():
    exponents = np.arange(-126, 128)
    np.testing.assert_array_equal(power_of_two(tf.constant(exponents, tf.int32)), np.ldexp(np.float32(1), exponents))
    np.testing.assert_array_equal(power_of_two(tf.constant([-200, 200])), np.ldexp(np.float32(1), [-126, 127]))


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_the_exponent_changes_exactly_at_one_and_a_half_times_a_power(xla: bool):
    powers = np.ldexp(np.float32(1), np.arange(-100, 100))
    edges = (np.float32(1.5) * powers).astype(np.float32)
    function = tf.function(nearest_exponent, autograph=False, jit_compile=xla)
    np.testing.assert_array_equal(function(tf.constant(edges)), np.arange(-99, 101))
    np.testing.assert_array_equal(function(tf.constant(np.nextafter(edges, 0))), np.arange(-100, 100))
    np.testing.assert_array_equal(function(tf.constant(powers)), np.arange(-100, 100))


@settings(max_examples=200, deadline=None)
@given(largest=FLOATS, bits=st.integers(2, 6))
def test_level_exponents_are_those_of_equations_1_and_2(largest: float, bits: int):
    weights = np.array([[0.0, -largest], [largest / 2, 0.0]], np.float32)
    assert tuple(level_exponents(tf.constant(weights), bits).numpy()) == paper_exponents(largest, bits)


def test_a_layer_of_zeros_has_levels_and_rounds_to_zeros():
    exponents = level_exponents(tf.zeros([3, 2]), 5)
    assert exponents.numpy().tolist() == [0, -7]
    np.testing.assert_array_equal(round_to_levels(tf.zeros([3, 2]), exponents), np.zeros((3, 2)))


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_weights_are_rounded_as_equation_4_says(bits: int, xla: bool):
    generator = np.random.default_rng(bits)
    random = generator.normal(size=400) * 2.0 ** generator.integers(-12, 1, size=400)
    first, last = paper_exponents(float(np.float32(np.abs(random).max())), bits)
    edges = np.float32([2.0**k * factor for k in range(last - 1, first + 2) for factor in (0.5, 0.75, 1.0, 1.5)])
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))])
    weights = np.concatenate([random, edges, -edges, [0.0, -0.0]]).astype(np.float32)
    expected = [paper_rounding(float(weight), first, last) for weight in weights]
    np.testing.assert_array_equal(rounded(weights, (first, last), xla=xla), np.float32(expected))


@given(weights=st.lists(FLOATS | FLOATS.map(lambda x: -x), min_size=1, max_size=9), first=st.integers(-20, 20))
def test_rounding_gives_levels_that_round_to_themselves(weights: list[float], first: int):
    once = rounded(np.float32(weights), (first, first - 7))
    levels = {0.0, *(sign * 2.0**k for k in range(first - 7, first + 1) for sign in (1, -1))}
    assert set(once.tolist()) <= levels
    assert rounded(once, (first, first - 7)).tobytes() == once.tobytes()


def test_five_bits_hold_zero_and_sixteen_signed_powers():
    weights = np.linspace(-1, 1, 20001, dtype=np.float32)
    exponents = level_exponents(tf.constant(weights), 5)
    assert len(np.unique(round_to_levels(tf.constant(weights), exponents))) == 17


def test_a_weight_that_has_outgrown_the_levels_takes_the_largest():
    np.testing.assert_array_equal(rounded(np.float32([1.6, -100.0]), (0, -7)), [1.0, -1.0])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_the_dtype_is_kept(dtype: tf.DType):
    result = round_to_levels(tf.cast([0.3, -0.7, 0.001], dtype), tf.constant([0, -3]))
    assert result.dtype == dtype
    np.testing.assert_array_equal(tf.cast(result, tf.float32), [0.25, -0.5, 0.0])
