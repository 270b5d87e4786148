"""Batch normalization as a single op, and moments synchronized over all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.ops.override_gradient import declare_override

Mean: TypeAlias = "Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]"


def synchronized_moments(x: tf.Tensor, *, axis: int, shift: tf.Tensor, mean: Mean) -> tuple[tf.Tensor, tf.Tensor]:
    """Return per-channel mean and biased variance over all replicas' equally sized parts of a batch.

    var = mean(var_r + (mean_r - shift)^2) - (mean - shift)^2 over replicas r: one reduction for both. The shift avoids
    the cancellation that large means cause in the difference of squares (Chan, Golub and LeVeque 1983, "Algorithms for
    computing the sample variance"). Means are taken one axis at a time: a single long float32 sum accumulates too much
    rounding error (over 24,000 entries per channel, `tf.nn.moments` was off by 4e-5).

    Args:
        x: this replica's part, float32, [..., channels, ...].
        axis: the channel axis, 0 or more.
        shift: float32 [channels], the same on every replica, near the mean, such as the moving mean; gets no gradient.
        mean: returns the means of tensors over the replicas, with gradients, such as `Replica.mean`.

    Returns:
        mean and variance, float32 [channels], the same on every replica.
    """
    others = [place for place in reversed(range(x.shape.rank)) if place != axis]
    own_mean = _mean_of_each(x, others)
    own_variance = _mean_of_each(tf.math.squared_difference(x, tf.stop_gradient(own_mean)), others)
    shift = tf.stop_gradient(shift)
    distance = tf.reshape(own_mean, [-1]) - shift
    distance, squared = mean([distance, tf.reshape(own_variance, [-1]) + tf.square(distance)])
    return shift + distance, squared - tf.square(distance)


def _mean_of_each(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Return the mean over the axes, taken one axis at a time, with keepdims."""
    for axis in axes:
        x = tf.reduce_mean(x, axis, keepdims=True)
    return x


SMALLEST_EPSILON = 1.001e-5  # the smallest that cuDNN accepts
FUSED_DTYPES = ("float32", "float16", "bfloat16")
EXACT_EPSILON = 2.0**-10  # 1 - EXACT_EPSILON + EXACT_EPSILON is exactly 1, even in float32
Tensors: TypeAlias = "tuple[tf.Tensor, ...]"


def fused_batch_norm(x: Any, scale: Any, offset: Any, *, epsilon: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return x normalized by its per-channel mean and variance, scaled and shifted; and this mean and variance.

    y = scale * (x - mean) / sqrt(variance + epsilon) + offset. Ioffe and Szegedy 2015, arXiv 1502.03167, algorithm 1.
    The variance is the biased one, sum((x - mean)^2) / n, of which Keras keeps a moving average.

    Gradients of y are correct to any order, eagerly, in a `tf.function`, and compiled by XLA; the returned mean and
    variance have no gradient. The first derivative also uses a fused kernel; higher ones use ordinary ops.

    Args:
        x: [..., channels], of rank 2 or more, float32, float16 or bfloat16; channels must be known when tracing.
        scale: float32 [channels], often called gamma.
        offset: float32 [channels], often called beta.
        epsilon: at least 1.001e-5.

    Returns:
        y in the shape and dtype of x; mean and variance, float32 [channels], which are NaN if x is empty.

    Raises:
        UserError: another dtype or rank, unknown channels, or a smaller epsilon.
    """
    x, scale, offset = (tf.convert_to_tensor(each) for each in (x, scale, offset))
    _check(x)
    if epsilon < SMALLEST_EPSILON:
        raise UserError(f"epsilon={epsilon} received. Expected at least {SMALLEST_EPSILON}, as the fused kernel does.")

    @tf.custom_gradient
    def normalize(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tuple[Tensors, Callable[..., Tensors]]:
        none = tf.constant([], tf.float32)
        y, mean, unbiased, *saved = tf.raw_ops.FusedBatchNormV3(
            x=_images(x), scale=scale, offset=offset, mean=none, variance=none, epsilon=epsilon, is_training=True
        )

        def backward(of_y: tf.Tensor, *_: tf.Tensor) -> Tensors:
            return _gradients(of_y, x, scale, tuple(saved), epsilon)

        return (_in_shape(y, x), mean, unbiased * _bias(x)), backward

    y, mean, variance = normalize(x, scale, offset)
    _declare("fused_batch_norm", (x, scale, offset), y, partial(_plain, epsilon=epsilon))
    return y, tf.stop_gradient(mean), tf.stop_gradient(variance)


def fused_scale_and_shift(x: Any, scale: Any, offset: Any) -> tf.Tensor:
    """Return x * scale + offset, in one pass over x.

    This is batch norm with given statistics if scale = gamma / sqrt(variance + epsilon) and offset = beta - mean *
    scale: gradients reach all four of them, to any order.

    Args:
        x: as for `fused_batch_norm`, with the same errors.
        scale: float32 [channels].
        offset: float32 [channels].
    """
    x, scale, offset = (tf.convert_to_tensor(each) for each in (x, scale, offset))
    _check(x)

    @tf.custom_gradient
    def compute(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Tensors]]:
        mean, variance = tf.zeros_like(scale), tf.fill(tf.shape(scale), 1.0 - EXACT_EPSILON)
        given = {"scale": scale, "offset": offset, "mean": mean, "variance": variance}
        y, *_ = tf.raw_ops.FusedBatchNormV3(x=_images(x), **given, epsilon=EXACT_EPSILON, is_training=False)
        # On Intel CPUs TensorFlow 2.21 would fuse convolution, this op and tanh into an op that has no kernel.
        y = tf.raw_ops.Snapshot(input=y)

        def backward(of_y: tf.Tensor) -> Tensors:
            given = tf.cast(of_y, tf.float32)
            axes = _all_but_channels(x)
            of_scale = tf.reduce_sum(given * tf.cast(x, tf.float32), axes)
            return tf.cast(given * scale, x.dtype), of_scale, tf.reduce_sum(given, axes)

        return _in_shape(y, x), backward

    y = compute(x, scale, offset)
    _declare("fused_scale_and_shift", (x, scale, offset), y, lambda x, scale, offset: x * scale + offset)
    return y


def _declare(name: str, inputs: Tensors, outputs: Any, surrogate: Callable[..., Any]) -> None:
    """Declare the surrogate of the gradients, except in half precision, where rounding would look like an error."""
    if inputs[0].dtype == tf.float32:
        declare_override(name, inputs, outputs, surrogate)


def _plain(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, *, epsilon: float) -> tf.Tensor:
    """Return y computed with ordinary ops."""
    axes = _all_but_channels(x)
    mean = tf.reduce_mean(x, axes)
    variance = tf.reduce_mean(tf.square(x - mean), axes)
    return scale * (x - mean) * tf.math.rsqrt(variance + epsilon) + offset


def _gradients(of_y: tf.Tensor, x: tf.Tensor, scale: tf.Tensor, saved: Tensors, epsilon: float) -> Tensors:
    """Return the gradients of x, scale and offset from the fused kernel, which TensorFlow cannot differentiate."""

    @tf.custom_gradient
    def compute(
        of_y: tf.Tensor, x: tf.Tensor, scale: tf.Tensor, *saved: tf.Tensor
    ) -> tuple[Tensors, Callable[..., tuple[tf.Tensor | None, ...]]]:
        of_x, of_scale, of_offset, *_ = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=_images(of_y),
            x=_images(x),
            scale=scale,
            **{f"reserve_space_{number}": each for number, each in enumerate(saved, start=1)},
            epsilon=epsilon,
            is_training=True,
        )

        def backward(*upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
            copies = [tf.identity(each) for each in (of_y, x, scale)]  # the tape watches only these
            with tf.GradientTape() as tape:
                tape.watch(copies)
                gradients = _plain_gradients(*copies, epsilon=epsilon)
            return (*tape.gradient(gradients, copies, output_gradients=list(upstream)), *(None for _ in saved))

        return (_in_shape(of_x, x), of_scale, of_offset), backward

    # The identities capture tensors of the forward pass in this graph; higher derivatives are built in yet another one.
    return compute(*(tf.identity(each) for each in (of_y, x, scale, *saved)))


def _plain_gradients(of_y: tf.Tensor, x: tf.Tensor, scale: tf.Tensor, *, epsilon: float) -> Tensors:
    """Return the same gradients as the kernel with ordinary ops (algorithm 1), recomputing mean and variance from x."""
    given, values = tf.cast(of_y, tf.float32), tf.cast(x, tf.float32)
    axes, count = _all_but_channels(x), _count(x)
    centered = values - tf.reduce_mean(values, axes)
    inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), axes) + epsilon)
    normalized = centered * inverse
    of_scale, of_offset = tf.reduce_sum(given * normalized, axes), tf.reduce_sum(given, axes)
    of_x = scale * inverse * (given - (of_offset + normalized * of_scale) / count)
    return tf.cast(of_x, x.dtype), of_scale, of_offset


def _check(x: tf.Tensor) -> None:
    rank = x.shape.rank
    if x.dtype.name not in FUSED_DTYPES or rank is None or rank < 2 or not x.shape[-1]:
        raise UserError(
            f"The fused kernel received {x.dtype.name} of shape {x.shape}. Expected float32, float16 or bfloat16 of "
            "shape [..., channels] with a known number of channels."
        )


def _all_but_channels(x: tf.Tensor) -> list[int]:
    return list(range(x.shape.rank - 1))


def _images(x: tf.Tensor) -> tf.Tensor:
    """Return x with the four axes that the kernels require."""
    return x if x.shape.rank == 4 else tf.reshape(x, [-1, 1, 1, x.shape[-1]])


def _in_shape(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    if x.shape.rank == 4:
        return y
    result = tf.reshape(y, tf.shape(x))
    result.set_shape(x.shape)
    return result


def _count(x: tf.Tensor) -> tf.Tensor:
    """Return the number n of entries per channel as a float32 scalar."""
    return tf.cast(tf.reduce_prod(tf.shape(x)[:-1]), tf.float32)


def _bias(x: tf.Tensor) -> tf.Tensor:
    """Return (n - 1) / n, which undoes the kernel's Bessel correction; 1 for n = 1, where the kernel applies none."""
    count = _count(x)
    return tf.maximum(count - 1.0, 1.0) / count
