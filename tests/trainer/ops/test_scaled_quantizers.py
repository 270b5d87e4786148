"""Quantizers with more than two fixed values: scaled signs, k bits, three values, and draws."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.ops.estimators import dorefa, magnitude_aware_sign, ste_tern, stochastic_sign

Op = Callable[[tf.Tensor], tf.Tensor]
JIT = pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])


def run(op: Op, x: np.ndarray, *, jit: bool = False) -> np.ndarray:
    return tf.function(op, jit_compile=jit, autograph=False)(tf.constant(x)).numpy()


def gradient_of(op: Op, x: np.ndarray, upstream: np.ndarray) -> np.ndarray:
    @tf.function(autograph=False)
    def compute(value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        return tf.gradients(op(value), value, grad_ys=weight)[0]

    return compute(tf.constant(x), tf.constant(upstream)).numpy()


def normal(*shape: int, seed: int = 0, scale: float = 0.7) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=scale, size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("axes", "mean_over"),
    [((-1,), (0, 1, 2)), ((-2,), (0, 1, 3)), ((-2, -1), (0, 1))],
    ids=["conv", "transpose", "depth"],
)
def test_a_magnitude_aware_sign_is_plus_or_minus_the_mean_of_its_channel(axes, mean_over):
    x = normal(3, 3, 4, 5)
    x[0, 0, 0, 0] = 0.0
    for jit in (False, True):
        y = run(lambda value: magnitude_aware_sign(value, channel_axes=axes), x, jit=jit)
        np.testing.assert_allclose(y, np.where(x >= 0, 1, -1) * np.abs(x).mean(mean_over, keepdims=True), rtol=1e-6)
        np.testing.assert_array_equal(np.abs(y), np.broadcast_to(np.abs(y).max(mean_over, keepdims=True), x.shape))
    small = np.full((4096, 1), 0.01, ml_dtypes.bfloat16)  # averaged in float32
    np.testing.assert_array_equal(run(magnitude_aware_sign, small), small)


def test_the_scale_of_a_magnitude_aware_sign_has_no_gradient():
    x, upstream = normal(6, 3), normal(6, 3, seed=1)
    x[0, 0] = 1.0
    expected = np.abs(x).mean(axis=0, keepdims=True) * (np.abs(x) <= 1) * upstream
    np.testing.assert_allclose(gradient_of(magnitude_aware_sign, x, upstream), expected, rtol=1e-6)


def oracle_levels(unit: np.ndarray, k_bit: int) -> np.ndarray:
    steps = 2**k_bit - 1
    return np.round(unit * np.float32(steps)) * np.float32(1 / steps)


@JIT
@pytest.mark.parametrize("k_bit", [1, 2, 8])
def test_dorefa_activations_have_two_to_the_k_levels_from_zero_to_one(k_bit: int, jit: bool):
    x = np.linspace(-0.5, 1.5, 4001).astype(np.float32)
    y = run(lambda value: dorefa(value, k_bit=k_bit), x, jit=jit)
    np.testing.assert_array_equal(y, oracle_levels(np.clip(x, 0, 1), k_bit))
    np.testing.assert_array_equal(y, dorefa(tf.constant(x), k_bit=k_bit))  # without a graph, too
    assert len(np.unique(y)) == 2**k_bit
    assert y.min() == 0
    assert y.max() == 1


@JIT
@pytest.mark.parametrize("k_bit", [2, 8])
def test_dorefa_weights_are_levels_from_minus_one_to_one(k_bit: int, jit: bool):
    x = normal(200, 5)
    limited = np.tanh(x)
    expected = 2 * oracle_levels(limited / (2 * np.abs(limited).max()) + 0.5, k_bit) - 1
    y = run(lambda value: dorefa(value, k_bit=k_bit, mode="weights"), x, jit=jit)
    assert np.mean(np.abs(y - expected) > 1e-5) <= (0 if k_bit < 8 else 1e-2)  # ties fall either way by one ulp of tanh
    assert len(np.unique(y)) <= 2**k_bit
    assert np.abs(y).max() == 1


def test_dorefa_weights_differentiate_through_tanh_and_its_maximum():
    x, upstream = normal(30), normal(30, seed=1)
    limited = np.tanh(x)
    top = np.argmax(np.abs(limited))
    maximum = np.abs(limited[top])
    inner = 1 - limited**2
    expected = inner / maximum * upstream
    expected[top] -= np.sign(limited[top]) * inner[top] * np.sum(upstream * limited) / maximum**2
    received = gradient_of(lambda value: dorefa(value, k_bit=3, mode="weights"), x, upstream)
    np.testing.assert_allclose(received, expected, rtol=1e-4, atol=1e-5)


def test_dorefa_weights_of_one_bit_are_the_sign_times_the_mean_magnitude():
    x = np.array([[0.5, -1.5], [0.0, -2.0]], np.float32)
    np.testing.assert_array_equal(run(lambda v: dorefa(v, k_bit=1, mode="weights"), x), [[1, -1], [1, -1]])
    received = gradient_of(lambda v: dorefa(v, k_bit=1, mode="weights"), x, np.full((2, 2), 2, np.float32))
    np.testing.assert_array_equal(received, np.full((2, 2), 2))


@JIT
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_ste_tern_has_three_values_and_zero_up_to_its_threshold(dtype, jit: bool):
    x = np.array([0.0, -0.0, 0.04, 0.06, -0.04, -0.06, 0.25, -0.25, 5, -5], dtype)
    np.testing.assert_array_equal(run(ste_tern, x, jit=jit), [0, 0, 0, 1, 0, -1, 1, -1, 1, -1])
    wide = run(lambda value: ste_tern(value, threshold=0.25), x, jit=jit)
    np.testing.assert_array_equal(wide, [0, 0, 0, 0, 0, 0, 0, 0, 1, -1])


def test_ternary_weight_networks_take_their_threshold_from_the_tensor():
    x = normal(50, 4)
    limit = 0.7 * np.abs(x).mean()
    y = run(lambda value: ste_tern(value, ternary_weight_networks=True), x)
    np.testing.assert_array_equal(y, np.where(x > limit, 1, np.where(x < -limit, -1, 0)))


@JIT
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_a_stochastic_sign_has_the_probability_of_the_hard_sigmoid(dtype, jit: bool):
    levels = np.array([-1.5, -1.0, -0.5, -0.0625, 0.0, 0.0625, 0.5, 1.0, 3.0], dtype)
    x = np.repeat(levels[:, None], 20_000, axis=1)
    y = run(lambda value: stochastic_sign(value, seed=tf.constant([3, 4])), x, jit=jit).astype(np.float32)
    assert set(np.unique(y)) == {-1.0, 1.0}
    mean = np.clip(levels.astype(np.float32), -1, 1)
    np.testing.assert_allclose(y.mean(axis=1), mean, atol=0.03)
    certain = np.abs(mean) == 1
    np.testing.assert_array_equal(y.mean(axis=1)[certain], mean[certain])


def test_nan_is_never_turned_into_a_level():
    x = np.array([[np.nan, 0.5], [-0.5, 0.3]], np.float32)
    for op, options in (
        (dorefa, {}),
        (dorefa, {"mode": "weights"}),
        (dorefa, {"k_bit": 1, "mode": "weights"}),
        (ste_tern, {}),
        (ste_tern, {"ternary_weight_networks": True}),
        (magnitude_aware_sign, {}),
        (stochastic_sign, {"seed": tf.constant([0, 1])}),
    ):
        for jit in (False, True):
            assert np.isnan(run(lambda v, op=op, options=options: op(v, **options), x, jit=jit)[0, 0])


def test_gradients_pass_up_to_their_limits_inclusive_and_seeds_repeat():
    x, ones = np.float32([-1.001, -1.0, -0.1, 0.0, 0.4, 1.0, 1.1]), np.ones(7, np.float32)
    seeded = lambda *seed: lambda value: stochastic_sign(value, seed=tf.constant(seed))  # noqa: E731
    np.testing.assert_array_equal(gradient_of(dorefa, x, 3 * ones), [0, 0, 0, 3, 3, 3, 0])
    for op in (ste_tern, seeded(0, 0)):
        np.testing.assert_array_equal(gradient_of(op, x, ones), [0, 1, 1, 1, 1, 1, 0])
    first, again, other = (run(seeded(*seed), np.zeros(200, np.float32)) for seed in ([1, 2], [1, 2], [1, 3]))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_dorefa_is_finite_for_zeros_and_refuses_other_bits_and_modes():
    assert np.isfinite(run(lambda v: dorefa(v, k_bit=2, mode="weights"), np.zeros((3, 2), np.float32))).all()
    for options, match in (({"k_bit": 0}, "1 to 8"), ({"k_bit": 9}, "1 to 8"), ({"mode": "weight"}, "'weights'")):
        with pytest.raises(UserError, match=match):
            dorefa(tf.zeros([2]), **options)
