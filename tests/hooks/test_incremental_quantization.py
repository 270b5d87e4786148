"""Share by share, weights become powers of two and never move again, while the others keep training."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.hooks.incremental_quantization import IncrementalQuantization, change_steps
from hookline.hooks.quantization.quantizers import (
    level_exponents,
    most_values,
    nearest_exponent,
    power_of_two,
    round_to_levels,
)
from hookline.trainer.network import Network
from tests.support.hooked import hooked
from tests.support.refusals import assert_refused
from tests.support.toy import build_context, toy_network, values_of


def paper_exponents(largest: float, bits: int) -> tuple[int, int]:
    """Return n1 and n2 by equations 1 and 2; the logarithm is found by comparing exact fractions."""
    ratio = Fraction(largest) * 4 / 3
    first = next(k for k in range(-140, 140) if Fraction(2) ** k <= ratio < Fraction(2) ** (k + 1))
    return first, first + 1 - 2 ** (bits - 1) // 2


def paper_rounding(weight: float, first: int, last: int) -> float:
    """Return the level b with (a + b) / 2 <= |w| < 3 b / 2, by equation 4; the largest level beyond all of them."""
    levels = [0.0, *(2.0**k for k in range(last, first + 1))]
    size = abs(weight)
    if size >= 1.5 * levels[-1]:
        return math.copysign(levels[-1], weight)
    for below, level in itertools.pairwise(levels):
        if (below + level) / 2 <= size < 1.5 * level:
            return math.copysign(level, weight)
    return 0.0


KERNELS = ("toy/hidden/kernel", "toy/logits/kernel")


def named(name: str = "incremental_quantization", **options: Any) -> IncrementalQuantization:
    hook = IncrementalQuantization(**{"step_epochs": 2, **options})  # due at steps 0, 8, 16, 24
    hook.name = name
    return hook


def kernels_of(network: Network) -> dict[str, np.ndarray]:
    return {name: np.array(network.variables[name].value) for name in KERNELS}


def masks_of(hook: IncrementalQuantization) -> dict[str, np.ndarray]:
    return {name: np.array(hook.declare().state[f"mask/{name}"]) for name in KERNELS}


def exponents_of(hook: IncrementalQuantization) -> dict[str, list[int]]:
    return {name: hook.declare().state[f"exponents/{name}"].numpy().tolist() for name in KERNELS}


def paper_levels(values: np.ndarray, first: int, last: int) -> np.ndarray:
    return np.vectorize(lambda value: paper_rounding(float(value), first, last))(values).astype(np.float32)


def test_run_matches_the_paper_in_numpy():
    pulls = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3, "global_clipnorm": 1.0}
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01, **pulls)
    network, hook = toy_network(optimizer=optimizer, regularizer=0.05), named()
    loop = hooked(network, hook, xla=True)
    start = kernels_of(network)
    levels = {name: paper_exponents(float(np.abs(value).max()), 5) for name, value in start.items()}
    masks = {name: np.ones(value.shape, bool) for name, value in start.items()}
    for step in range(30):
        before = kernels_of(network)
        loop.run(step, 1)
        after = kernels_of(network)
        share = {0: 0.5, 8: 0.75, 16: 0.875, 24: 1.0}.get(step)
        reported = loop.accumulators.read()["incremental_quantization/share"]
        loop.accumulators.reset()
        for name in KERNELS:
            if share is not None:
                ranked = np.where(masks[name], np.abs(before[name]), np.inf).ravel()
                chosen = np.argsort(-ranked, kind="stable")[: round(share * ranked.size)]
                masks[name].ravel()[chosen] = False
            quantized = ~masks[name]
            expected = paper_levels(before[name], *levels[name])
            assert after[name][quantized].tobytes() == expected[quantized].tobytes()
            if masks[name].any():
                assert np.mean(after[name][masks[name]] != before[name][masks[name]]) > 0.9
            np.testing.assert_array_equal(masks_of(hook)[name], masks[name])
            assert exponents_of(hook)[name] == list(levels[name])
        assert reported == pytest.approx(np.mean(np.concatenate([~mask.ravel() for mask in masks.values()])), rel=1e-5)
    assert not any(mask.any() for mask in masks.values())
    optimizer.finalize_variable_values(list(network.trainable_variables.values()))  # the average replaces the weights
    assert all(value.tobytes() == after[name].tobytes() for name, value in kernels_of(network).items())
    assert hook.summary()["on_levels"]
    assert hook.declare().best_from_step == 25
    assert hook.shipped_bits(kernels_of(network)).stored == dict.fromkeys(KERNELS, 5.0)
    network.variables[KERNELS[0]].assign(np.full((6, 8), 0.3))
    assert not hook.summary()["on_levels"]
    assert hook.shipped_bits(kernels_of(network)).stored.keys() == {KERNELS[1]}


def test_run_ends_quantized_even_if_the_last_share_is_due_at_its_end():
    network, hook = toy_network(), named(begin_epoch=2.5, step_epochs=0.5)
    loop = hooked(network, hook, total_steps=16)
    loop.run(0, 15)
    assert all(mask.any() for mask in masks_of(hook).values())
    assert not hook.shipped_bits(kernels_of(network)).stored
    loop.run(15, 1)
    assert not any(mask.any() for mask in masks_of(hook).values())
    for name, value in kernels_of(network).items():
        np.testing.assert_array_equal(value, paper_levels(value, *exponents_of(hook)[name]))
    assert hook.declare().best_from_step == 16


def test_random_choices_follow_the_seed_and_ties_give_exact_shares():
    chosen = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        network, hook = toy_network(), named(criterion="random", bits=3)
        sizes = np.abs(kernels_of(network)[KERNELS[0]])
        hooked(network, hook).run(0, 1)
        chosen.append(masks_of(hook)[KERNELS[0]])
        assert chosen[-1].mean() == 0.5
    np.testing.assert_array_equal(chosen[0], chosen[1])
    assert not np.array_equal(chosen[0], sizes < np.median(sizes))
    network, hook = toy_network(optimizer=keras.optimizers.SGD(0.1)), named(layers="logits")
    network.variables[KERNELS[1]].assign(np.full((8, 3), -0.3))
    start, loop = values_of(network), hooked(network, hook)
    loop.run(0, 1)
    assert hook.declare().projected == {KERNELS[1]}
    kernel = network.variables[KERNELS[1]].numpy()
    assert (kernel == -0.25).sum() == 12
    loop.run(1, 2)
    assert all(np.any(values_of(network)[name] != start[name]) for name in network.trainable_variables)


def test_unsuitable_layers_and_late_shares_are_refused():
    for options, word in (({"layers": "norm"}, "norm"), ({"begin_epoch": 20}, "epoch 26")):
        assert_refused(word, named(**options).build, build_context(toy_network()))


# When shares grow.


def steps(count: int = 4, begin: float = 0.0, apart: float | None = None, total: int = 100, epoch: float = 4.0):
    context = SimpleNamespace(total_steps=total, steps_per_epoch=epoch)
    return change_steps(count, begin, apart, context)


def test_shares_grow_at_the_first_step_of_their_epoch():
    for arguments, expected in (
        ({"begin": 5}, [20, 40, 60, 80]),
        ({"apart": 0.5, "begin": 1.25}, [5, 7, 9, 11]),
        ({"count": 1, "begin": 3}, [12]),
        ({"apart": 1, "epoch": 3.3}, [0, 4, 7, 10]),
        ({"total": 4, "epoch": 2.0}, [0, 1, 2, 3]),
        ({"apart": 5, "begin": 10}, [40, 60, 80, 99]),  # at the very end, in the last step
        ({"count": 2, "begin": 24.75, "apart": 0.25}, [99, 99]),
    ):
        assert steps(**arguments) == expected
    assert_refused("epoch 27", steps, apart=9)


# Levels and rounding against the paper's own equations, computed by exhaustive comparison in float64.

FLOATS = st.floats(2.0**-60, 2.0**60, width=32)


def rounded(weights: np.ndarray, exponents: tuple[int, int], *, xla: bool = False) -> np.ndarray:
    function = tf.function(round_to_levels, autograph=False, jit_compile=xla)
    return function(tf.constant(weights), tf.constant(exponents, tf.int32)).numpy()


def test_nearest_exponent_changes_at_one_and_a_half_times_a_power():
    exponents = np.arange(-126, 128)
    np.testing.assert_array_equal(power_of_two(tf.constant(exponents, tf.int32)), np.ldexp(np.float32(1), exponents))
    powers = np.ldexp(np.float32(1), np.arange(-100, 100))
    edges = (np.float32(1.5) * powers).astype(np.float32)
    function = tf.function(nearest_exponent, autograph=False, jit_compile=True)
    np.testing.assert_array_equal(function(tf.constant(edges)), np.arange(-99, 101))
    np.testing.assert_array_equal(function(tf.constant(np.nextafter(edges, 0))), np.arange(-100, 100))
    np.testing.assert_array_equal(function(tf.constant(powers)), np.arange(-100, 100))


@settings(max_examples=60, deadline=None)
@given(largest=FLOATS, bits=st.integers(2, 6))
def test_level_exponents_match_equations_1_and_2(largest: float, bits: int):
    assert level_exponents(tf.zeros([3, 2]), 5).numpy().tolist() == [0, -7]
    weights = np.array([[0.0, -largest], [largest / 2, 0.0]], np.float32)
    assert tuple(level_exponents(tf.constant(weights), bits).numpy()) == paper_exponents(largest, bits)


@pytest.mark.parametrize(("bits", "xla"), [(2, False), (5, False), (5, True), (8, False)])
def test_rounding_matches_equation_4(bits: int, xla: bool):
    generator = np.random.default_rng(bits)
    random = generator.normal(size=400) * 2.0 ** generator.integers(-12, 1, size=400)
    first, last = paper_exponents(float(np.float32(np.abs(random).max())), bits)
    edges = np.float32([2.0**k * factor for k in range(last - 1, first + 2) for factor in (0.5, 0.75, 1.0, 1.5)])
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))])
    weights = np.concatenate([random, edges, -edges, [0.0, -0.0]]).astype(np.float32)
    expected = [paper_rounding(float(weight), first, last) for weight in weights]
    found = rounded(weights, (first, last), xla=xla)
    np.testing.assert_array_equal(found, np.float32(expected))
    assert rounded(found, (first, last)).tobytes() == found.tobytes()
    assert len(np.unique(found)) <= 2 ** (bits - 1) + 1
    np.testing.assert_array_equal(rounded(np.float32([1.6, -100.0, 0.0]), (0, -7)), [1.0, -1.0, 0.0])  # too large


# How many values an array has, as a whole or by channel.


def test_distinct_values_are_counted_in_the_array_or_per_channel():
    assert most_values(np.arange(12, dtype=np.float32).reshape(3, 4)) == 12
    assert most_values(np.array([0.0, -0.0], np.float32)) == 1
    assert most_values(np.array([1.0, 1.0 + 2**-10, 1.0 + 2**-9], np.float16)) == 3
    scaled = (np.array([[1, -1, 1], [-1, -1, -1], [1, 1, 1]]) * [1.0, 2.0, 3.0]).astype(np.float32)
    assert [most_values(scaled, axes) for axes in ((-1,), (0,), (0, 1), ())] == [2, 3, 1, 6]
