"""Fake quantization: floats that an integer runtime holds exactly, with straight-through gradients.

Ranges are float32 [..., 2], a smallest and a largest value. Axes are negative: those with step sizes of their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import Kernel
from hookline.trainer.graph import fold_shape, folded_norms
from hookline.trainer.network import Network
from hookline.trainer.ops.averages import STRETCH, middle


def weight_scales(weights: tf.Tensor, bits: int, axes: Sequence[int]) -> tf.Tensor:
    """Return the step of the grid, max|w| / (2^(bits - 1) - 1), with axes of 1: one for each channel."""
    others = [axis for axis in range(-weights.shape.rank, 0) if axis not in axes]
    return tf.reduce_max(tf.abs(weights), axis=others, keepdims=True) / (2.0 ** (bits - 1) - 1.0)


def quantize_weights(weights: tf.Tensor, bits: int, axes: Sequence[int], factors: tf.Tensor | None = None) -> tf.Tensor:
    """Return round(w / s) s, half to even, with the gradient of w; with factors, w * factors lies on the grid."""

    @tf.custom_gradient
    def rounded(values: tf.Tensor) -> tuple[tf.Tensor, object]:
        scaled = values if factors is None else values * factors
        scales = weight_scales(scaled, bits, axes)
        found = tf.round(tf.math.divide_no_nan(scaled, scales)) * scales
        found = found if factors is None else tf.math.divide_no_nan(found, factors)
        return found, lambda upstream: upstream

    return rounded(weights)


def nudged(ranges: tf.Tensor, bits: int) -> tf.Tensor:
    """Return ranges that hold 0, moved by less than a step so that one of 2^bits levels is 0 exactly."""
    # TensorFlow and its converter would do so by themselves, but round halves to different sides.
    most = 2.0**bits - 1.0
    low, high = ranges[..., 0], ranges[..., 1]
    scale = (high - low) / most
    zero = tf.round(tf.math.divide_no_nan(-low * most, high - low))
    return tf.stack([-zero * scale, (most - zero) * scale], axis=-1)


def quantize_averages(values: tf.Tensor, limits: tf.Tensor, bits: int) -> tf.Tensor:
    """Return what `quantize_activations` does, but halves, which are frequent, rounded as average pooling does."""

    @tf.custom_gradient
    def rounded(given: tf.Tensor) -> tuple[tf.Tensor, object]:
        stretched = given * (1.0 + STRETCH) - STRETCH * middle(limits[0], limits[1], bits)
        found = quantize_activations(stretched, limits, bits)
        inside = tf.logical_and(given >= limits[0], given <= limits[1])
        return found, lambda upstream: tf.where(inside, upstream, 0.0)

    return tf.cast(rounded(tf.cast(values, tf.float32)), values.dtype)


def quantize_activations(values: tf.Tensor, limits: tf.Tensor, bits: int) -> tf.Tensor:
    """Return values rounded to 2^bits levels between the ends of a nudged range, both of which pass the gradient."""
    given = tf.cast(values, tf.float32)
    rounded = tf.quantization.fake_quant_with_min_max_vars(given, limits[0], limits[1], num_bits=bits)
    return tf.cast(rounded, values.dtype)


def moved_ranges(ranges: tf.Tensor, seen: tf.Tensor, decay: float) -> tf.Tensor:
    """Return decay * ranges + (1 - decay) * seen, widened to hold 0; those that are [0, 0] take what was seen."""
    seen = tf.stack([tf.minimum(seen[..., 0], 0.0), tf.maximum(seen[..., 1], 0.0)], axis=-1)
    fresh = tf.reduce_all(ranges == 0.0, axis=-1, keepdims=True)
    return tf.where(fresh, seen, decay * ranges + (1.0 - decay) * seen)


def widest(extremes: tf.Tensor) -> tf.Tensor:
    """Return the extremes [..., 2] of all parts [parts, ..., 2] of a batch; a third number is a mean."""
    columns = [tf.reduce_min(extremes[..., 0], axis=0), tf.reduce_max(extremes[..., 1], axis=0)]
    columns += [tf.reduce_mean(extremes[..., 2], axis=0)] if extremes.shape[-1] == 3 else []
    return tf.stack(columns, axis=-1)


def on_grid(weights: np.ndarray, bits: int, axes: Sequence[int], scales: np.ndarray | None = None) -> bool:
    """Return whether weights are whole multiples of their steps, which are those of `weight_scales` unless given."""
    if scales is None:
        scales = weight_scales(tf.convert_to_tensor(weights), bits, axes).numpy()
    steps = np.divide(weights, scales, out=np.array(weights), where=scales > 0.0)
    return bool((np.abs(steps - np.round(steps)) < 1e-3).all())


Factors: TypeAlias = "Callable[[Mapping[str, Any], Mapping[str, Any]], tf.Tensor]"
"""Returns what multiplies a kernel, by weights and moving statistics."""


def folded_by_kernel(network: Network, kernels: Sequence[Kernel]) -> dict[str, Factors]:
    """Return the factors gamma / sqrt(variance + epsilon) of batch norms that are folded into kernels, by kernel."""
    names = {id(variable): name for name, variable in network.variables.items()}
    norms = {id(layer.kernel): (layer, norm) for layer, norm in folded_norms(network.model)}

    def factors(kernel: Kernel, weights: Mapping[str, Any], state: Mapping[str, Any]) -> tf.Tensor:
        layer, norm = norms[id(kernel.variable)]
        scale = tf.math.rsqrt(tf.cast(state[names[id(norm.moving_variance)]], tf.float32) + norm.epsilon)
        scale = scale * weights[names[id(norm.gamma)]] if norm.scale else scale
        return tf.reshape(scale, fold_shape(layer, kernel.variable))

    return {each.name: partial(factors, each) for each in kernels if id(each.variable) in norms}
