"""Fused batch norm and synchronized moments: values, biased variance, derivatives up to third order, edge cases."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.trainer.errors import UserError
from hookline.trainer.ops.batch_norm import fused_batch_norm, fused_scale_and_shift, synchronized_moments
from tests.support.refusals import assert_refused

ULP = {tf.float32: 2.0**-23, tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7}


def plain(x, scale, offset, *, epsilon):
    axes = list(range(len(x.shape) - 1))
    mean = tf.reduce_mean(x, axes)
    variance = tf.reduce_mean(tf.square(x - mean), axes)
    return scale * (x - mean) * tf.math.rsqrt(variance + epsilon) + offset, mean, variance


def arguments(shape, *, mean=3.0):
    generator = np.random.default_rng(0)
    channels = shape[-1]
    values = generator.normal(mean, 2.0, shape), generator.normal(1.0, 0.3, channels), generator.normal(size=channels)
    return tuple(tf.constant(each, tf.float32) for each in values)


def close(found, expected, tolerance=2e-5):
    scale = max(1e-3, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(
        np.array(found, np.float64), np.array(expected, np.float64), rtol=0, atol=tolerance * scale
    )


SHAPES = st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 4)).map(
    lambda drawn: (*drawn[0], drawn[1])
)


@given(SHAPES, st.sampled_from(list(ULP)), st.sampled_from([2e-5, 1e-3, 0.3]), st.sampled_from([0.0, 50.0]))
@settings(max_examples=40)
def test_results_match_ordinary_ops_in_float64(shape, dtype, epsilon, mean):
    x, scale, offset = arguments(shape, mean=mean)
    x = tf.cast(x, dtype)
    y, found_mean, variance = fused_batch_norm(x, scale, offset, epsilon=epsilon)
    exact = plain(*(tf.cast(each, tf.float64) for each in (x, scale, offset)), epsilon=epsilon)
    assert (y.dtype, found_mean.dtype, variance.dtype) == (dtype, tf.float32, tf.float32)
    assert y.shape == x.shape
    # A channel of one entry has variance 0: the rounding error of its mean is divided by sqrt(epsilon).
    close(y, exact[0], 2 * ULP[dtype] + 4 * ULP[tf.float32] * (1 + mean) / epsilon**0.5)
    close(found_mean, exact[1], 1e-6)
    close(variance, exact[2], 1e-5 * (1 + mean))


def derivatives(function, weight, orders):
    def compute(*given):
        total = tf.reduce_sum(tf.sin(function(*given, epsilon=1e-2)[0]) * weight)
        found = []
        for _ in range(orders):
            gradients = tf.gradients(total, list(given))
            found += gradients
            total = sum(tf.reduce_sum(tf.square(each)) for each in gradients)
        return found

    return compute


@pytest.mark.parametrize(
    ("shape", "orders", "jit"), [((5, 3), 3, False), ((4, 3, 2, 2), 2, False), ((2, 3, 4), 2, True)]
)
def test_derivatives_are_correct_up_to_third_order(shape, orders, jit):
    given_arguments = arguments(shape)
    generator = np.random.default_rng(1)
    weight = tf.constant(generator.normal(size=shape), tf.float32)
    found = tf.function(derivatives(fused_batch_norm, weight, orders), autograph=False, jit_compile=jit)(
        *given_arguments
    )
    expected = tf.function(derivatives(plain, weight, orders), autograph=False)(*given_arguments)
    for each, right in zip(found, expected, strict=True):
        close(each, right, 5e-5)


def test_variance_is_biased_for_sizes_unknown_at_trace_time():
    for count, jit in ((1, False), (2, True), (3, False)):
        x, scale, offset = arguments((count, 1, 1, 2))
        compute = lambda x, s=scale, o=offset: fused_batch_norm(x, s, o, epsilon=1e-3)[2]  # noqa: E731
        spec = [tf.TensorSpec([None, 1, None, 2])]
        close(tf.function(compute, spec, autograph=False, jit_compile=jit)(x), np.var(x.numpy(), axis=(0, 1, 2)))
    for shape in ((0, 4, 4, 2), (0, 2)):
        y, mean, variance = fused_batch_norm(tf.zeros(shape), scale, offset, epsilon=1e-3)
        assert y.shape == shape
        assert np.isnan([mean, variance]).all()  # no entries


def test_half_precision_is_summed_in_float32():
    x, scale, offset = arguments((64, 8, 8, 2))
    x = tf.cast(x, tf.bfloat16)
    upstream = tf.cast(tf.random.stateless_normal(x.shape, [1, 2]) + 1.0, tf.bfloat16)

    def compute(x, upstream, function):
        return tf.gradients(function(x, scale, offset, epsilon=1e-3)[0], [x, scale, offset], grad_ys=upstream)

    found = tf.function(lambda *given: compute(*given, fused_batch_norm), autograph=False)(x, upstream)
    wide = [tf.cast(each, tf.float32) for each in (x, upstream)]
    expected = tf.function(lambda *given: compute(*given, plain), autograph=False)(*wide)
    close(tf.cast(found[0], tf.float32), expected[0], ULP[tf.bfloat16])
    close(found[1], expected[1], 2e-4)  # summed in half precision, 4,096 entries would be far off
    close(found[2], expected[2], 2e-4)


def test_scale_and_shift_runs_between_convolution_and_tanh():
    images, kernel = tf.ones([2, 6, 6, 1]), tf.fill([3, 3, 1, 4], 0.1)

    def compute(images):
        return tf.tanh(fused_scale_and_shift(tf.nn.conv2d(images, kernel, 1, "VALID"), tf.ones([4]), tf.zeros([4])))

    close(tf.function(compute, autograph=False)(images), np.full([2, 4, 4, 4], np.tanh(0.9)))


def test_inputs_unsupported_by_the_kernel_are_refused():
    for spec in (tf.TensorSpec([2, 1], tf.float64), tf.TensorSpec([1]), tf.TensorSpec([2, None])):
        for function in (
            lambda x: fused_batch_norm(x, [1.0], [0.0], epsilon=1e-3)[0],
            lambda x: fused_scale_and_shift(x, [1.0], [0.0]),
        ):
            with pytest.raises(UserError, match=r"of shape \[..., channels\]"):
                tf.function(function, autograph=False, input_signature=[spec]).get_concrete_function()
    assert_refused("epsilon=1e-05", fused_batch_norm, *arguments((4, 3)), epsilon=1e-5)


def by_parts(x, parts, *, axis=-1, shift=None):
    """Return the moments that each of several replicas computes, all in one process.

    The first pass records what each replica contributes to the mean; the second one gives the means to all of them.
    """
    axis %= x.shape.rank
    shift = tf.zeros([x.shape[axis]]) if shift is None else shift
    slices = tf.split(x, parts)
    given_ = []

    def note(tensors):
        given_.append(list(tensors))
        return list(tensors)

    for each in slices:
        synchronized_moments(each, axis=axis, shift=shift, mean=note)
    means = [tf.add_n(group) / parts for group in zip(*given_, strict=True)]
    return [synchronized_moments(each, axis=axis, shift=shift, mean=lambda _: means) for each in slices]


@given(
    seed=st.integers(0, 2**16),
    parts=st.sampled_from([1, 2, 4]),
    each=st.integers(1, 6),
    size=st.integers(1, 5),
    mean=st.floats(-100.0, 100.0),
    log_scale=st.floats(-2.0, 2.0),
)
def test_synchronized_moments_equal_those_of_the_whole_batch(seed, parts, each, size, mean, log_scale):
    generator = np.random.default_rng(seed)
    scale = 10.0**log_scale
    x = (mean + scale * generator.normal(size=(parts * each, size, 3))).astype(np.float32)
    whole = x.astype(np.float64)
    near = tf.constant((whole.mean((0, 1)) + 0.1 * scale).astype(np.float32))
    for found_mean, variance in by_parts(tf.constant(x), parts, shift=near):
        np.testing.assert_allclose(found_mean, whole.mean((0, 1)), rtol=1e-5, atol=1e-5 * scale)
        bound = 1e-5 * scale**2 + (1e-6 * mean) ** 2
        np.testing.assert_allclose(variance, whole.var((0, 1)), rtol=1e-4, atol=bound)


def test_gradient_of_synchronized_moments_equals_whole_batch_gradient():
    generator = np.random.default_rng(1)
    x = tf.constant(generator.normal(size=(6, 4, 3)).astype(np.float32))
    up_mean, up_variance = (tf.constant(generator.normal(size=3).astype(np.float32)) for _ in range(2))

    def through(moments):
        mean, variance = moments
        return tf.reduce_sum(mean * up_mean) + tf.reduce_sum(variance * up_variance)

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        whole = through(tf.nn.moments(x, [0, 1]))
        parts = through(by_parts(x, 3, shift=tf.constant([0.5, -1.0, 0.0]))[0])
    np.testing.assert_allclose(tape.gradient(parts, x), tape.gradient(whole, x), rtol=1e-4, atol=1e-6)


def test_axis_is_respected_and_variance_is_accurate_for_large_means():
    x = (3000.0 + np.random.default_rng(0).normal(size=(8, 3, 50, 2))).astype(np.float32)
    exact, shift = x.astype(np.float64), tf.constant([3000.5, 2999.5, 3000.0])
    for mean, variance in by_parts(tf.constant(x), 2, axis=1, shift=shift):
        np.testing.assert_allclose(mean, exact.mean((0, 2, 3)), rtol=1e-6)
        np.testing.assert_allclose(variance, exact.var((0, 2, 3)), rtol=1e-4)
