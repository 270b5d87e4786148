"""Fake quantization: floats that an integer runtime holds exactly, with straight-through gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from hookline.trainer.ops.averages import STRETCH, middle


def weight_scales(weights: tf.Tensor, bits: int, axes: Sequence[int]) -> tf.Tensor:
    """Return the step of the grid, max|w| / (2^(bits - 1) - 1), with axes of 1: one for each channel.

    Args:
        weights: float, any shape.
        bits: 2 to 8.
        axes: negative, those that tell channels apart; none for one step.
    """
    others = [axis for axis in range(-weights.shape.rank, 0) if axis not in axes]
    return tf.reduce_max(tf.abs(weights), axis=others, keepdims=True) / (2.0 ** (bits - 1) - 1.0)


def quantize_weights(weights: tf.Tensor, bits: int, axes: Sequence[int], factors: tf.Tensor | None = None) -> tf.Tensor:
    """Return round(w / s) s: symmetric, in a narrow range, half to even. The gradient passes as it is.

    Nothing lies outside of the range, so the gradient is clipped nowhere. A channel of zeros stays one.

    Args:
        weights: float, any shape.
        bits: 2 to 8.
        axes: negative, those that tell channels apart; none for one step.
        factors: float, broadcasts to the weights; then w * factors is what lies on the grid.
    """

    @tf.custom_gradient
    def rounded(values: tf.Tensor) -> tuple[tf.Tensor, object]:
        scaled = values if factors is None else values * factors
        scales = weight_scales(scaled, bits, axes)
        found = tf.round(tf.math.divide_no_nan(scaled, scales)) * scales
        found = found if factors is None else tf.math.divide_no_nan(found, factors)
        return found, lambda upstream: upstream

    return rounded(weights)


def with_zero(ranges: tf.Tensor) -> tf.Tensor:
    """Return ranges [..., 2] widened to hold 0."""
    return tf.stack([tf.minimum(ranges[..., 0], 0.0), tf.maximum(ranges[..., 1], 0.0)], axis=-1)


def nudged(ranges: tf.Tensor, bits: int) -> tf.Tensor:
    """Return ranges [..., 2] that hold 0, moved by less than a step so that one of 2^bits levels is 0 exactly.

    TensorFlow and its converter would do so by themselves, but round halves to different sides: of images in [-1, 1]
    the brightest pixels would differ.

    Args:
        ranges: float32 [..., 2].
        bits: 2 to 16.
    """
    most = 2.0**bits - 1.0
    low, high = ranges[..., 0], ranges[..., 1]
    scale = (high - low) / most
    zero = tf.round(tf.math.divide_no_nan(-low * most, high - low))
    return tf.stack([-zero * scale, (most - zero) * scale], axis=-1)


def quantize_averages(values: tf.Tensor, limits: tf.Tensor, bits: int) -> tf.Tensor:
    """Return what `quantize_activations` does, but halves rounded as average pooling in integers does.

    Halves are frequent: one in four means of four integers is a half.
    """

    @tf.custom_gradient
    def rounded(given: tf.Tensor) -> tuple[tf.Tensor, object]:
        stretched = given * (1.0 + STRETCH) - STRETCH * middle(limits[0], limits[1], bits)
        found = quantize_activations(stretched, limits, bits)
        inside = tf.logical_and(given >= limits[0], given <= limits[1])
        return found, lambda upstream: tf.where(inside, upstream, 0.0)

    return tf.cast(rounded(tf.cast(values, tf.float32)), values.dtype)


def quantize_activations(values: tf.Tensor, limits: tf.Tensor, bits: int) -> tf.Tensor:
    """Return values rounded to 2^bits levels from limits[0] to limits[1].

    The gradient passes inside of the limits, both included, and is 0 outside.

    Args:
        values: any shape and float dtype.
        limits: float32 [2], nudged.
        bits: 2 to 16.
    """
    given = tf.cast(values, tf.float32)
    rounded = tf.quantization.fake_quant_with_min_max_vars(given, limits[0], limits[1], num_bits=bits)
    return tf.cast(rounded, values.dtype)


def moved_ranges(ranges: tf.Tensor, seen: tf.Tensor, decay: float) -> tf.Tensor:
    """Return decay * ranges + (1 - decay) * seen, widened to hold 0; those that are [0, 0] still take what was seen.

    Args:
        ranges: float32 [points, 2].
        seen: float32 [points, 2], the smallest and largest values of a batch.
        decay: in [0, 1).
    """
    seen = with_zero(seen)
    fresh = tf.reduce_all(ranges == 0.0, axis=-1, keepdims=True)
    return tf.where(fresh, seen, decay * ranges + (1.0 - decay) * seen)


def on_grid(weights: np.ndarray, bits: int, axes: Sequence[int], scales: np.ndarray | None = None) -> bool:
    """Return whether weights are whole multiples of their steps, which are those of `weight_scales` unless given."""
    if scales is None:
        scales = weight_scales(tf.convert_to_tensor(weights), bits, axes).numpy()
    steps = np.divide(weights, scales, out=np.array(weights), where=scales > 0.0)
    return bool((np.abs(steps - np.round(steps)) < 1e-3).all())
