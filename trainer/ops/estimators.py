"""Straight-through estimators: the forward pass rounds, the backward pass differentiates a surrogate.

Inputs x have any shape and float dtype, and NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from hookline.trainer.errors import check_choice, check_integer
from hookline.trainer.ops.override_gradient import declare_override

Op: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"
Gradient: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tf.Tensor]"


def straight_through(forward: tf.Tensor, backward: tf.Tensor) -> tf.Tensor:
    """Return the value of `forward` with the gradient of `backward`: y = t + stop_gradient(f - t).

    y equals `forward` exactly where f - t is exact, such as for 1/2 <= t / f <= 2 (Sterbenz) or f = 0.

    Args:
        forward: f(x), any float dtype.
        backward: t = g(x), same shape and dtype.
    """
    return backward + tf.stop_gradient(forward - backward)


def ste_gate(upstream: tf.Tensor, x: tf.Tensor, limit: float) -> tf.Tensor:
    """Return the gradient where |x| <= limit, and 0 elsewhere (also at NaN), even where the gradient is infinite.

    Args:
        upstream: the incoming gradient, in the shape and dtype of x.
        x: any shape and float dtype.
        limit: above 0; infinity passes every gradient except where x is NaN.
    """
    # On a CPU a product takes two thirds of the time of `tf.where`.
    return tf.math.multiply_no_nan(upstream, tf.cast(tf.abs(x) <= limit, upstream.dtype))


def hard_sigmoid(x: tf.Tensor) -> tf.Tensor:
    """Return clip((x + 1) / 2, 0, 1); backward 1{|x| <= 1} / 2. Not `keras.ops.hard_sigmoid`, clip(x / 6 + 1/2, 0, 1).

    Courbariaux et al. 2016, arXiv 1602.02830, equation 3.
    """
    # Clipping first keeps the mask exact: one ulp above 1, x + 1 would round to 2.
    return 0.5 * (tf.clip_by_value(tf.convert_to_tensor(x), -1.0, 1.0) + 1.0)


def zero_unless(mask: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Return the value where the mask is True, and +0 elsewhere, even for infinity and NaN; also for the gradient.

    Bit-identical to `tf.where(mask, value, 0)`, except that denormals may be flushed to 0. On a CPU this takes two
    thirds of the time of `tf.where`, and half if several products share the cast of one mask.

    Args:
        mask: bool, of the value's shape or one that broadcasts to it. It gets no gradient.
        value: any shape and float dtype.
    """
    value = tf.convert_to_tensor(value)
    return tf.math.multiply_no_nan(value, tf.cast(mask, value.dtype))


def round_through(x: tf.Tensor) -> tf.Tensor:
    """Round to the nearest integer, half to even; backward dy/dx = 1.

    x + stop_gradient(round(x) - x). Straight-through estimator: Bengio et al. 2013, arXiv 1308.3432.
    """
    x = tf.convert_to_tensor(x)
    return straight_through(tf.round(x), x)


def binary_sign(x: tf.Tensor) -> tf.Tensor:
    """Return +1 where x >= 0 and -1 where x < 0, without a gradient.

    sign(0) = sign(-0) = +1, whereas `tf.sign` gives 0, a third value. NaN stays NaN, whereas a comparison gives -1.
    Denormals count as 0 on devices that flush them. On a CPU this takes half the time of `tf.where`.
    """
    return tf.sign(tf.sign(tf.stop_gradient(tf.convert_to_tensor(x))) + 0.5)


def _quantized(name: str, x: tf.Tensor, value: Op, gradient: Gradient, surrogate: Op) -> tf.Tensor:
    """Return value(x) with the gradient `gradient(upstream, x)`, declared as the derivative of the surrogate."""

    @tf.custom_gradient
    def quantize(latent: tf.Tensor) -> tuple[tf.Tensor, Op]:
        return value(latent), lambda upstream: gradient(upstream, latent)

    x = tf.convert_to_tensor(x)
    quantized = quantize(x)
    declare_override(name, [x], quantized, surrogate)
    return quantized


def _clipped(name: str, x: tf.Tensor, value: Op, limit: float) -> tf.Tensor:
    """Return value(x) with the gradient of clip(x, -limit, limit)."""

    def gradient(upstream: tf.Tensor, latent: tf.Tensor) -> tf.Tensor:
        return ste_gate(upstream, latent, limit)

    return _quantized(name, x, value, gradient, lambda latent: tf.clip_by_value(latent, -limit, limit))


def ste_sign(x: tf.Tensor, *, clip_value: float = 1.0) -> tf.Tensor:
    """Return exactly +1 where x >= 0 and -1 where x < 0; backward 1{|x| <= clip_value}.

    Courbariaux et al. 2016, arXiv 1602.02830, equation 4.

    Args:
        x: any shape and float dtype.
        clip_value: above 0; the gradient is cancelled where |x| exceeds it, and nowhere if it is infinity.
    """
    return _clipped("ste_sign", x, binary_sign, clip_value)


def binary_tanh(x: tf.Tensor) -> tf.Tensor:
    """Return exactly +1 where x >= 0 and -1 where x < 0; backward 1{|x| <= 1}: `ste_sign(x)`.

    Courbariaux et al. 2016, arXiv 1602.02830. Their 2 round(hard_sigmoid(x)) - 1, half to even, is -1 at 0 and at 1e-9.
    """
    return ste_sign(x)


def approx_sign(x: tf.Tensor) -> tf.Tensor:
    """Return exactly +1 where x >= 0 and -1 where x < 0; backward 2 - 2|x| where |x| <= 1, else 0 (also at NaN).

    Liu et al. 2018, "Bi-Real Net", arXiv 1808.00278.
    """

    def gradient(upstream: tf.Tensor, latent: tf.Tensor) -> tf.Tensor:
        slope = 2.0 - 2.0 * tf.abs(latent)
        return tf.math.multiply_no_nan(upstream, tf.where(slope > 0.0, slope, tf.zeros_like(slope)))

    def piecewise_quadratic(latent: tf.Tensor) -> tf.Tensor:  # 2x - x|x| where |x| <= 1, else the sign
        limited = tf.clip_by_value(latent, -1.0, 1.0)
        return limited * (2.0 - tf.abs(limited))

    return _quantized("approx_sign", x, binary_sign, gradient, piecewise_quadratic)


def swish_sign(x: tf.Tensor, *, beta: float = 5.0) -> tf.Tensor:
    """Return exactly +1 where x >= 0 and -1 where x < 0; backward the derivative of SignSwish.

    beta (2 - beta x tanh(beta x / 2)) / (1 + cosh(beta x)): beta at x = 0, slightly negative for large |x|, never cut.
    Darabi et al. 2018, "BNN+", arXiv 1812.11800.

    Args:
        x: any shape and float dtype.
        beta: steepness of the surrogate, above 0.
    """

    def gradient(upstream: tf.Tensor, latent: tf.Tensor) -> tf.Tensor:
        # Beyond |beta x| = 30 the slope is below 1e-10; without the clip, cosh overflows and infinity gives NaN.
        scaled = tf.clip_by_value(beta * tf.cast(latent, tf.float32), -30.0, 30.0)
        slope = beta * (2.0 - scaled * tf.tanh(0.5 * scaled)) / (1.0 + tf.cosh(scaled))
        slope = tf.where(tf.math.is_nan(scaled), tf.zeros_like(slope), slope)
        return tf.cast(slope, upstream.dtype) * upstream

    def sign_swish(latent: tf.Tensor) -> tf.Tensor:
        scaled = beta * tf.cast(latent, tf.float32)
        share = tf.sigmoid(scaled)
        return tf.cast(2.0 * share * (1.0 + scaled * (1.0 - share)) - 1.0, latent.dtype)

    return _quantized("swish_sign", x, binary_sign, gradient, sign_swish)


def magnitude_aware_sign(x: tf.Tensor, *, clip_value: float = 1.0, channel_axes: Sequence[int] = (-1,)) -> tf.Tensor:
    """Return exactly +s or -s, where s is the mean of |x| over a channel; backward s 1{|x| <= clip_value}.

    The scale is treated as a constant in the backward pass. Rastegari et al. 2016, "XNOR-Net", arXiv 1603.05279,
    section 3.1; Liu et al. 2018, "Bi-Real Net", arXiv 1808.00278.

    Args:
        x: any shape and float dtype, such as a kernel [height, width, in, out].
        clip_value: above 0; the gradient is cancelled where |x| exceeds it.
        channel_axes: axes that index output channels; the mean is taken over all others. (-1,) for dense and
            convolution kernels, (-2,) for transposed convolutions, (-2, -1) for depthwise ones.
    """
    x = tf.convert_to_tensor(x)
    kept = {axis % x.shape.rank for axis in channel_axes}
    reduced = [axis for axis in range(x.shape.rank) if axis not in kept]
    magnitude = tf.reduce_mean(tf.cast(tf.abs(x), tf.float32), axis=reduced, keepdims=True)
    return tf.stop_gradient(tf.cast(magnitude, x.dtype)) * ste_sign(x, clip_value=clip_value)


def stochastic_sign(x: tf.Tensor, *, seed: tf.Tensor) -> tf.Tensor:
    """Return +1 with probability hard_sigmoid(x), else -1, with mean clip(x, -1, 1); backward 1{|x| <= 1}.

    Courbariaux et al. 2015, "BinaryConnect", arXiv 1511.00363, equation 2.

    Args:
        x: any shape and float dtype.
        seed: int32 or int64, shape [2]; the draw is a pure function of it.
    """

    def drawn(latent: tf.Tensor) -> tf.Tensor:
        # float32 draws in [0, 1): bfloat16 ones would be 0 in one of 128 cases and bias the mean.
        draw = uniform_numbers(latent, tf.stop_gradient(seed))
        ones = tf.ones_like(latent)
        value = tf.where(draw < hard_sigmoid(tf.cast(latent, tf.float32)), ones, -ones)
        return tf.where(tf.math.is_nan(latent), latent, value)

    return _clipped("stochastic_sign", x, drawn, 1.0)


def ste_tern(
    x: tf.Tensor, *, threshold: float = 0.05, ternary_weight_networks: bool = False, clip_value: float = 1.0
) -> tf.Tensor:
    """Return exactly +1 where x > d, -1 where x < -d, else 0; backward 1{|x| <= clip_value}.

    d is `threshold`, or 0.7 mean|x| over the whole tensor (Li et al. 2016, "Ternary Weight Networks",
    arXiv 1605.04711, equation 6). sign(0) = 0 here: zero is one of the three values.

    Args:
        x: any shape and float dtype.
        threshold: 0 or more; not used when `ternary_weight_networks` is True.
        ternary_weight_networks: whether d is 0.7 mean|x|.
        clip_value: above 0; the gradient is cancelled where |x| exceeds it.
    """

    def ternary(latent: tf.Tensor) -> tf.Tensor:
        wide = tf.cast(latent, tf.float32)  # a threshold of 0.05 is not a bfloat16 number
        limit = 0.7 * tf.reduce_mean(tf.abs(wide)) if ternary_weight_networks else tf.constant(threshold, tf.float32)
        value = tf.cast(wide > limit, latent.dtype) - tf.cast(wide < -limit, latent.dtype)
        return tf.where(tf.math.is_nan(latent), latent, value)

    return _clipped("ste_tern", x, ternary, clip_value)


MODES = ("activations", "weights")
MAX_BITS = 8


def dorefa(x: tf.Tensor, *, k_bit: int = 2, mode: str = "activations") -> tf.Tensor:
    """Quantize to k bits: the levels i / n in [0, 1] for activations, 2 i / n - 1 in [-1, 1] for weights, n = 2^k - 1.

    Activations: round(n clip(x, 0, 1)) / n, backward 1{0 <= x <= 1} (equations 5 and 11).
    Weights, k > 1: with t = tanh(x) / (2 max|tanh(x)|) + 1/2, 2 round(n t) / n - 1; backward through t, rounding as
    the identity (equation 9). Weights, k = 1: mean|x| sign(x), sign(0) = +1, backward the identity, without the mean
    (equation 8). Rounding is half to even. Zhou et al. 2016, "DoReFa-Net", arXiv 1606.06160.

    Args:
        x: any shape and float dtype.
        k_bit: 1 to 8.
        mode: "activations" or "weights".

    Raises:
        UserError: k_bit out of range or an unknown mode.
    """
    check_integer("k_bit", k_bit, maximum=MAX_BITS)
    check_choice("dorefa mode", mode, MODES)
    x = tf.convert_to_tensor(x)
    wide = tf.cast(x, tf.float32)
    if mode == "activations":
        return tf.cast(_levels(tf.clip_by_value(wide, 0.0, 1.0), k_bit), x.dtype)
    if k_bit == 1:
        return _quantized("dorefa", x, _mean_times_sign, lambda upstream, _: upstream, tf.identity)
    limited = tf.tanh(wide)
    share = tf.math.divide_no_nan(limited, 2.0 * tf.reduce_max(tf.abs(limited)))
    return tf.cast(2.0 * _levels(share + 0.5, k_bit) - 1.0, x.dtype)


def _mean_times_sign(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reduce_mean(tf.abs(tf.cast(x, tf.float32))), x.dtype) * binary_sign(x)


def _levels(unit: tf.Tensor, k_bit: int) -> tf.Tensor:
    """Round float32 values in [0, 1] to the nearest of 2^k levels; backward the identity."""
    steps = float(2**k_bit - 1)

    def levels(value: tf.Tensor) -> tf.Tensor:
        # Not a division: XLA would turn it into this product, so the levels would depend on the compiler.
        return tf.round(value * steps) * (1.0 / steps)

    return _quantized("dorefa", unit, levels, lambda upstream, _: upstream, tf.identity)


Uniform: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tf.Tensor]"
GateGradient: TypeAlias = "Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]"


def uniform_numbers(like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return uniform float32 numbers in [0, 1), in the shape of `like`: a pure function of the seed, int [2]."""
    return tf.random.stateless_uniform(tf.shape(like), seed, dtype=tf.float32)


def bernoulli_gate(
    features: tf.Tensor, probability: tf.Tensor, *, seed: tf.Tensor, uniform: Uniform = uniform_numbers
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return y = r * x and r ~ Bernoulli(A): one draw per example and position, for all channels; E[y] = A * x.

    r is always 0 for A = 0 and always 1 for A = 1. XLA draws different values than TensorFlow does.

    Backward, with the r of the forward pass: dL/dx = r * dL/dy, and dL/dA = the sum over channels of x * dL/dy, plus
    dL/dr, summed in float32. Wang et al. 2017, arXiv 1710.11446, "Impdrop".

    Args:
        features: x, [batch, height, width, channels], any float dtype.
        probability: A, [batch, height, width, 1], in [0, 1]; any float dtype, not necessarily that of x.
        seed: int32 or int64, shape [2]; the draw is a pure function of it.
        uniform: called as uniform(A, seed); returns the numbers in [0, 1) that A is compared with, float32.

    Returns:
        y in the shape and dtype of x, and r in those of A.
    """

    @tf.custom_gradient
    def gate(x: tf.Tensor, given: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], GateGradient]:
        mask = _draw(given, seed, uniform)

        def gradient(upstream: tf.Tensor, upstream_mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            products = tf.cast(x, tf.float32) * tf.cast(upstream, tf.float32)
            summed = tf.reduce_sum(products, axis=-1, keepdims=True)
            return tf.cast(mask, x.dtype) * upstream, tf.cast(summed, given.dtype) + upstream_mask

        return (tf.cast(mask, x.dtype) * x, mask), gradient

    features, probability = tf.convert_to_tensor(features), tf.convert_to_tensor(probability)
    gated, mask = gate(features, probability)

    def product(x: tf.Tensor, given: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn = given + tf.stop_gradient(mask - given)
        return tf.cast(drawn, x.dtype) * x, drawn

    declare_override("bernoulli_gate", [features, probability], (gated, mask), product)
    return gated, mask


def _draw(probability: tf.Tensor, seed: tf.Tensor, uniform: Uniform) -> tf.Tensor:
    # Drawn and compared in float32: bfloat16 numbers near 1 are 2^-8 apart, so 0 would be drawn too often.
    numbers = uniform(probability, tf.stop_gradient(seed))
    mask = tf.cast(numbers < tf.cast(probability, tf.float32), probability.dtype)
    return tf.where(tf.math.is_nan(probability), probability, mask)
