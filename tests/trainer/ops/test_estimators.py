"""Estimators: exact values, the sign of 0, NaN propagation, closed-form gradients; the Bernoulli draw and its gate."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.ops.estimators import (
    approx_sign,
    bernoulli_gate,
    binary_sign,
    binary_tanh,
    dorefa,
    hard_sigmoid,
    magnitude_aware_sign,
    round_through,
    ste_sign,
    ste_tern,
    stochastic_sign,
    straight_through,
    swish_sign,
    zero_unless,
)
from tests.support.masking import bits
from tests.support.refusals import assert_refused

SIGNS = {
    "binary_sign": binary_sign,
    "binary_tanh": binary_tanh,
    "ste_sign": ste_sign,
    "approx_sign": approx_sign,
    "swish_sign": swish_sign,
}
TRAINED = {name: op for name, op in SIGNS.items() if name != "binary_sign"}
SMALLEST_NORMAL = {tf.float32: 1.2e-38, tf.bfloat16: 1.2e-38, tf.float16: 6.2e-5}
CORNERS = np.float32(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-9, -1e-9, 1e-38, -1e-38, 0.5, -0.5, 3.4e38, 1.0000001]
)
EVERYWHERE = np.frombuffer(np.random.default_rng(0).bytes(4 * 5000), np.float32)  # of every exponent, and NaN


def run(op, x, *, jit=False):
    return tf.function(op, jit_compile=jit, autograph=False)(tf.convert_to_tensor(x)).numpy()


def gradient_of(op, x, upstream, *, jit=False):
    @tf.function(jit_compile=jit, autograph=False)
    def gradient(value, weight):
        return tf.gradients(op(value), value, grad_ys=weight)[0]

    return tf.cast(gradient(tf.convert_to_tensor(x), tf.convert_to_tensor(upstream)), tf.float64).numpy()


def normal(*shape, seed=0, scale=0.7):
    return np.random.default_rng(seed).normal(scale=scale, size=shape).astype(np.float32)


@pytest.mark.parametrize("name", SIGNS)
def test_sign_has_two_values_is_plus_one_at_zero_and_keeps_nan(name):
    given = np.concatenate([CORNERS, EVERYWHERE, normal(500)])
    for dtype, jit in ((tf.float32, False), (tf.bfloat16, True), (tf.float16, False)):
        x = tf.cast(given, dtype)
        received, y = (tf.cast(each, tf.float64).numpy() for each in (x, run(SIGNS[name], x, jit=jit)))
        np.testing.assert_array_equal(np.isnan(y), np.isnan(received))
        assert set(np.unique(y[~np.isnan(y)])) == {-1.0, 1.0}
        certain = (np.abs(received) >= SMALLEST_NORMAL[dtype]) | (given == 0)  # denormals may be flushed to 0
        np.testing.assert_array_equal(y[certain], np.where(received >= 0, 1.0, -1.0)[certain])


def closed_form(name, x):
    x = x.astype(np.float64)
    inside = np.abs(x) <= 1
    if name == "approx_sign":
        return np.where(inside, 2 - 2 * np.abs(x), 0)
    if name == "swish_sign":
        scaled = 5 * np.clip(x, -100, 100)
        return 5 * (2 - scaled * np.tanh(scaled / 2)) / (1 + np.cosh(scaled))
    return np.where(inside, 1.0, 0.0)


BEYOND = np.nextafter(np.float32(1), 2)
EDGES = np.float32([0, -0.0, 0.3, -0.3, 1, -1, BEYOND, -BEYOND, 0.99999994, 2, -7, 1e6])


@pytest.mark.parametrize("name", TRAINED)
def test_sign_gradient_is_the_closed_form_with_inclusive_limits(name):
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


def test_gradients_follow_clip_value_beta_and_hard_sigmoid():
    x, ones = tf.constant([0.5, 0.50001, -0.5, -0.6, 0.0]), tf.ones(5)
    assert tf.function(lambda x: tf.gradients(binary_sign(x), x)[0] is None, autograph=False)(x)
    np.testing.assert_array_equal(gradient_of(lambda v: ste_sign(v, clip_value=0.5), x, ones), [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(gradient_of(lambda v: ste_sign(v, clip_value=np.inf), 100 * x, ones), ones)
    for beta in (1.0, 10.0):
        received = gradient_of(lambda v, b=beta: swish_sign(v, beta=b), x, ones)
        np.testing.assert_allclose(received[-1], beta, rtol=1e-6)
    edges = tf.constant(EDGES)
    np.testing.assert_allclose(hard_sigmoid(edges), np.clip((EDGES + 1) / 2, 0, 1), rtol=1e-6)
    received = gradient_of(hard_sigmoid, edges, tf.ones_like(edges))
    np.testing.assert_array_equal(received, 0.5 * (np.abs(EDGES) <= 1))


def test_straight_through_combines_value_and_gradient_of_two_tensors():
    x, upstream = tf.constant([-1.5, 0.5, 1.5, 2.5, 100.2]), tf.constant([1.0, -2.0, 3.0, 0.0, 5.0])
    np.testing.assert_array_equal(round_through(x), [-2, 0, 2, 2, 100])  # half to even
    np.testing.assert_array_equal(gradient_of(round_through, x, upstream), upstream)
    np.testing.assert_array_equal(straight_through(tf.square(x), 0.3 * x), np.square(x))
    received = gradient_of(lambda v: straight_through(tf.square(v), 2.0 * v), x, upstream)
    np.testing.assert_array_equal(received, 2.0 * upstream)
    unit = np.random.default_rng(0).uniform(size=1000).astype(np.float32)
    np.testing.assert_array_equal(straight_through(tf.round(unit), unit), np.round(unit))  # exact to the bit


def test_magnitude_aware_sign_scales_by_mean_magnitude_per_channel():
    x = normal(3, 3, 4, 5)
    x[0, 0, 0, 0] = 0.0
    for axes, mean_over, jit in (((-1,), (0, 1, 2), False), ((-2,), (0, 1, 3), False), ((-2, -1), (0, 1), True)):
        y = run(lambda value, axes=axes: magnitude_aware_sign(value, channel_axes=axes), x, jit=jit)
        np.testing.assert_allclose(y, np.where(x >= 0, 1, -1) * np.abs(x).mean(mean_over, keepdims=True), rtol=1e-6)
        np.testing.assert_array_equal(np.abs(y), np.broadcast_to(np.abs(y).max(mean_over, keepdims=True), x.shape))
    small = np.full((4096, 1), 0.01, ml_dtypes.bfloat16)  # averaged in float32
    np.testing.assert_array_equal(run(magnitude_aware_sign, small), small)
    x, upstream = normal(6, 3), normal(6, 3, seed=1)
    x[0, 0] = 1.0
    expected = np.abs(x).mean(axis=0, keepdims=True) * (np.abs(x) <= 1) * upstream  # the scale is a constant
    np.testing.assert_allclose(gradient_of(magnitude_aware_sign, x, upstream), expected, rtol=1e-6)


def oracle_levels(unit, k_bit):
    steps = 2**k_bit - 1
    return np.round(unit * np.float32(steps)) * np.float32(1 / steps)


def test_dorefa_has_the_levels_of_its_bit_width():
    x = np.linspace(-0.5, 1.5, 4001).astype(np.float32)
    for k_bit, jit in ((1, False), (2, True), (8, False)):
        y = run(lambda value, k=k_bit: dorefa(value, k_bit=k), x, jit=jit)
        np.testing.assert_array_equal(y, oracle_levels(np.clip(x, 0, 1), k_bit))
        np.testing.assert_array_equal(y, dorefa(tf.constant(x), k_bit=k_bit))  # also eagerly
        assert len(np.unique(y)) == 2**k_bit
        assert (y.min(), y.max()) == (0, 1)
    x = normal(200, 5)
    limited = np.tanh(x)
    for k_bit, jit in ((2, True), (8, False)):
        expected = 2 * oracle_levels(limited / (2 * np.abs(limited).max()) + 0.5, k_bit) - 1
        y = run(lambda value, k=k_bit: dorefa(value, k_bit=k, mode="weights"), x, jit=jit)
        off = np.mean(np.abs(y - expected) > 1e-5)
        assert off <= (0 if k_bit < 8 else 1e-2)  # one ulp of tanh decides ties either way
        assert len(np.unique(y)) <= 2**k_bit
        assert np.abs(y).max() == 1
    assert np.isfinite(run(lambda v: dorefa(v, k_bit=2, mode="weights"), np.zeros((3, 2), np.float32))).all()
    for options, match in (({"k_bit": 0}, "1 to 8"), ({"k_bit": 9}, "1 to 8"), ({"mode": "weight"}, "'weights'")):
        assert_refused(match, dorefa, tf.zeros([2]), **options)


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


def test_one_bit_dorefa_weights_are_the_sign_times_the_mean_magnitude():
    x = np.array([[0.5, -1.5], [0.0, -3.0]], np.float32)
    np.testing.assert_array_equal(run(lambda v: dorefa(v, k_bit=1, mode="weights"), x), [[1.25, -1.25]] * 2)
    received = gradient_of(lambda v: dorefa(v, k_bit=1, mode="weights"), x, np.full((2, 2), 2, np.float32))
    np.testing.assert_array_equal(received, np.full((2, 2), 2))


def test_ste_tern_has_three_values_and_is_zero_up_to_its_threshold():
    for dtype, jit in ((np.float32, False), (np.float16, True)):
        x = np.array([0.0, -0.0, 0.04, 0.06, -0.04, -0.06, 0.25, -0.25, 5, -5], dtype)
        np.testing.assert_array_equal(run(ste_tern, x, jit=jit), [0, 0, 0, 1, 0, -1, 1, -1, 1, -1])
        wide = run(lambda value: ste_tern(value, threshold=0.25), x)
        np.testing.assert_array_equal(wide, [0, 0, 0, 0, 0, 0, 0, 0, 1, -1])
    x = normal(50, 4)
    limit = 0.7 * np.abs(x).mean()
    y = run(lambda value: ste_tern(value, ternary_weight_networks=True), x)
    np.testing.assert_array_equal(y, np.where(x > limit, 1, np.where(x < -limit, -1, 0)))


def test_stochastic_sign_follows_the_hard_sigmoid_probability():
    seeded = lambda *seed: lambda value: stochastic_sign(value, seed=tf.constant(seed))  # noqa: E731
    for dtype, jit in ((np.float32, True), (ml_dtypes.bfloat16, False), (np.float16, False)):
        levels = np.array([-1.5, -1.0, -0.5, -0.0625, 0.0, 0.0625, 0.5, 1.0, 3.0], dtype)
        x = np.repeat(levels[:, None], 20_000, axis=1)
        y = run(seeded(3, 4), x, jit=jit).astype(np.float32)
        assert set(np.unique(y)) == {-1.0, 1.0}
        mean = np.clip(levels.astype(np.float32), -1, 1)
        np.testing.assert_allclose(y.mean(axis=1), mean, atol=0.03)
        certain = np.abs(mean) == 1
        np.testing.assert_array_equal(y.mean(axis=1)[certain], mean[certain])
    first, again, other = (run(seeded(*seed), np.zeros(200, np.float32)) for seed in ([1, 2], [1, 2], [1, 3]))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_quantizers_keep_nan():
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
        assert np.isnan(run(lambda v, op=op, options=options: op(v, **options), x)[0, 0])


def test_gradients_pass_within_inclusive_limits():
    x, ones = np.float32([-1.001, -1.0, -0.1, 0.0, 0.4, 1.0, 1.1]), np.ones(7, np.float32)
    np.testing.assert_array_equal(gradient_of(dorefa, x, 3 * ones), [0, 0, 0, 3, 3, 3, 0])
    for op in (ste_tern, lambda value: stochastic_sign(value, seed=tf.constant([0, 0]))):
        np.testing.assert_array_equal(gradient_of(op, x, ones), [0, 1, 1, 1, 1, 1, 0])


SEED = (3, 5)


def maps(batch=4, channels=3, dtype=np.float32):
    generator = np.random.default_rng(0)
    features = generator.uniform(0.5, 2.0, (batch, 3, 2, channels)) * generator.choice([-1, 1], (batch, 3, 2, channels))
    return features.astype(dtype), generator.uniform(0.1, 0.9, (batch, 3, 2, 1)).astype(dtype)


def gate(features, probability, seed=SEED, *, jit=False):
    function = tf.function(bernoulli_gate, autograph=False, jit_compile=jit)
    y, mask = function(tf.constant(features), tf.constant(probability), seed=tf.constant(seed, tf.int32))
    return y.numpy(), mask.numpy()


def gradients(features, probability, upstream, *, jit=False, seed=SEED):
    def compute(x, given, weight):
        y, mask = bernoulli_gate(x, given, seed=tf.constant(seed, tf.int32))
        return (*tf.gradients(y, [x, given], grad_ys=weight), mask)

    function = tf.function(compute, autograph=False, jit_compile=jit)
    return tuple(value.numpy() for value in function(*map(tf.constant, (features, probability, upstream))))


@pytest.mark.parametrize(
    ("dtype", "other", "tolerance", "jit"),
    [
        (np.float32, np.float32, 1e-6, False),
        (np.float16, np.float16, 2**-10, False),
        (ml_dtypes.bfloat16, np.float32, 1e-6, True),  # bfloat16 features beside an attention map in float32
    ],
)
def test_bernoulli_gate_gradients_are_the_closed_form_with_the_same_draw(dtype, other, tolerance, jit):
    features, _ = maps(dtype=dtype)
    _, probability = maps(dtype=other)
    upstream = np.random.default_rng(1).normal(size=features.shape).astype(dtype)
    to_features, to_probability, mask = gradients(features, probability, upstream, jit=jit)
    assert to_features.dtype == dtype
    assert to_probability.dtype == mask.dtype == other
    x, weight, r = (each.astype(np.float64) for each in (features, upstream, mask))
    assert set(np.unique(r)) == {0.0, 1.0}
    np.testing.assert_array_equal(to_features.astype(np.float64), r * weight)
    expected = (x * weight).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(to_probability.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_bernoulli_gate_applies_one_mask_to_all_channels():
    features, probability = maps()
    y, mask = gate(features, probability)
    assert mask.shape == probability.shape
    assert set(np.unique(mask)) == {0.0, 1.0}
    np.testing.assert_array_equal(y, mask * features)  # nothing is divided by A
    probability[1, 2, 0, 0] = np.nan  # a comparison would hide it
    y, mask = gate(features, probability)
    assert (np.isnan(mask).sum(), np.isnan(y).sum()) == (1, features.shape[-1])


def test_bernoulli_draws_are_independent_across_examples_positions_and_seeds():
    half = np.full((500, 3, 2, 1), 0.5, np.float32)
    ones = np.ones((500, 3, 2, 4), np.float32)
    _, mask = gate(ones, half)
    assert len(np.unique(mask.reshape(500, -1), axis=0)) > 50  # of 64 patterns: the batch does not share one mask
    correlations = np.corrcoef(mask.reshape(500, -1), rowvar=False) - np.eye(6)
    assert np.abs(correlations).max() < 0.2
    np.testing.assert_array_equal(gate(ones, half)[1], mask)
    for other in ((3, 6), (4, 5)):
        assert 0.4 < np.mean(gate(ones, half, other)[1] != mask) < 0.6


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_bernoulli_rate_is_exact_at_0_and_1_and_matches_in_between(dtype):
    x = np.ones((100_000, 1, 1, 1), dtype)
    for rate in (0.0, 1 / 512, 255 / 256, 1.0):
        asked = np.full_like(x, rate)
        bound = 5 * np.sqrt(rate * (1 - rate) / x.size)
        assert abs(gate(x, asked)[1].astype(np.float64).mean() - rate) <= bound


def test_channels_are_summed_in_float32_and_mask_losses_are_differentiated():
    features = np.ones((1, 1, 1, 4096), ml_dtypes.bfloat16)
    _, to_probability, _ = gradients(features, np.full((1, 1, 1, 1), 0.5, ml_dtypes.bfloat16), features)
    assert to_probability.item() == 4096.0  # summed one by one in bfloat16, it would stop at 256
    x, given = map(tf.constant, maps())
    with tf.GradientTape() as tape:
        tape.watch(given)
        y, mask = bernoulli_gate(x, given, seed=tf.constant(SEED, tf.int64))
        loss = tf.reduce_sum(y) + 7.0 * tf.reduce_sum(mask)  # the draw passes gradients straight through
    np.testing.assert_allclose(tape.gradient(loss, given), x.numpy().sum(-1, keepdims=True) + 7.0, rtol=1e-6)


@pytest.mark.parametrize("xla", [False, True])
def test_zero_unless_is_bit_identical_to_tf_where(xla):
    values = np.concatenate([CORNERS, EVERYWHERE])
    # A device may flush denormal numbers.
    values = values[(values == 0) | ~(np.abs(values) < SMALLEST_NORMAL[tf.float32])]
    kept, gradient = (np.random.default_rng(seed).permutation(values) for seed in (1, 2))

    def both(kept, x, gradient):
        found = zero_unless(kept, x), tf.where(kept, x, tf.zeros_like(x))
        return [*found, *(tf.gradients(each, x, gradient)[0] for each in found)]

    traced = tf.function(both, autograph=False, jit_compile=xla)
    found, expected, to_found, to_expected = traced(*map(tf.constant, (kept > 0, values, gradient)))
    numeric = ~np.isnan(expected.numpy())
    np.testing.assert_array_equal(np.isnan(found), ~numeric)
    np.testing.assert_array_equal(bits(found)[numeric], bits(expected)[numeric])
    np.testing.assert_array_equal(to_found, to_expected)
