"""Fake quantization to floats that an integer runtime holds exactly, with straight-through gradients; learned steps.

Ranges are float32 [..., 2]: smallest and largest value. Axes are negative: those along which step sizes differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import CONVOLUTIONS, DEPTHWISE, SEPARABLE, Kernel, channel_axes, mark_added
from hookline.hooks.quantization.selection import trace_kernel_inputs
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, fold_shape, folded_norms, is_of, layer_paths
from hookline.trainer.network import Network
from hookline.trainer.ops.averages import STRETCH, middle


def step_axes(layer: keras.Layer, kernel: keras.Variable) -> tuple[int, ...]:
    """Return the axes of a kernel along which step sizes differ; none if the whole kernel has one step."""
    if kernel.dtype != "float32":
        raise UserError(
            f"The kernel '{kernel.path}' is {kernel.dtype}, but an 8-bit grid needs float32. Layers with "
            "dtype=mixed_bfloat16 have float32 kernels."
        )
    return channel_axes(layer, kernel) if is_of(layer, (*CONVOLUTIONS, *DEPTHWISE, *SEPARABLE)) else ()


def weight_scales(weights: tf.Tensor, bits: int, axes: Sequence[int]) -> tf.Tensor:
    """Return the quantization steps, max|w| / (2^(bits - 1) - 1) over the other axes; they broadcast to the weights."""
    others = [axis for axis in range(-weights.shape.rank, 0) if axis not in axes]
    return tf.reduce_max(tf.abs(weights), axis=others, keepdims=True) / (2.0 ** (bits - 1) - 1.0)


def quantize_weights(weights: tf.Tensor, bits: int, axes: Sequence[int], factors: tf.Tensor | None = None) -> tf.Tensor:
    """Return round(w / s) s, half to even, straight-through; with factors, w * factors is on the grid instead."""

    @tf.custom_gradient
    def rounded(values: tf.Tensor) -> tuple[tf.Tensor, object]:
        scaled = values if factors is None else values * factors
        scales = weight_scales(scaled, bits, axes)
        found = tf.round(tf.math.divide_no_nan(scaled, scales)) * scales
        found = found if factors is None else tf.math.divide_no_nan(found, factors)
        return found, lambda upstream: upstream

    return rounded(weights)


def nudged(ranges: tf.Tensor, bits: int) -> tf.Tensor:
    """Return ranges that contain 0, shifted by less than a step so that one of 2^bits levels is exactly 0."""
    # TensorFlow and its converter do this themselves, but round halves to different sides.
    most = 2.0**bits - 1.0
    low, high = ranges[..., 0], ranges[..., 1]
    scale = (high - low) / most
    zero = tf.round(tf.math.divide_no_nan(-low * most, high - low))
    return tf.stack([-zero * scale, (most - zero) * scale], axis=-1)


def quantize_averages(values: tf.Tensor, limits: tf.Tensor, bits: int) -> tf.Tensor:
    """Round like `quantize_activations`, except halves, which are frequent: these are rounded like average pooling."""

    @tf.custom_gradient
    def rounded(given: tf.Tensor) -> tuple[tf.Tensor, object]:
        stretched = given * (1.0 + STRETCH) - STRETCH * middle(limits[0], limits[1], bits)
        found = quantize_activations(stretched, limits, bits)
        inside = tf.logical_and(given >= limits[0], given <= limits[1])
        return found, lambda upstream: tf.where(inside, upstream, 0.0)

    return tf.cast(rounded(tf.cast(values, tf.float32)), values.dtype)


def quantize_activations(values: tf.Tensor, limits: tf.Tensor, bits: int) -> tf.Tensor:
    """Return values rounded to 2^bits levels of a nudged range; the gradient passes inside it, both ends included."""
    given = tf.cast(values, tf.float32)
    rounded = tf.quantization.fake_quant_with_min_max_vars(given, limits[0], limits[1], num_bits=bits)
    return tf.cast(rounded, values.dtype)


def moved_ranges(ranges: tf.Tensor, seen: tf.Tensor, decay: float) -> tf.Tensor:
    """Return decay * ranges + (1 - decay) * seen, with seen widened to contain 0; ranges of [0, 0] become seen."""
    seen = tf.stack([tf.minimum(seen[..., 0], 0.0), tf.maximum(seen[..., 1], 0.0)], axis=-1)
    fresh = tf.reduce_all(ranges == 0.0, axis=-1, keepdims=True)
    return tf.where(fresh, seen, decay * ranges + (1.0 - decay) * seen)


def widest(extremes: tf.Tensor) -> tf.Tensor:
    """Return the extremes [..., 2] over all parts [parts, ..., 2] of a batch; a third column holds means."""
    columns = [tf.reduce_min(extremes[..., 0], axis=0), tf.reduce_max(extremes[..., 1], axis=0)]
    columns += [tf.reduce_mean(extremes[..., 2], axis=0)] if extremes.shape[-1] == 3 else []
    return tf.stack(columns, axis=-1)


def on_grid(weights: np.ndarray, bits: int, axes: Sequence[int], scales: np.ndarray | None = None) -> bool:
    """Return whether weights are integer multiples of their steps, by default those of `weight_scales`."""
    if scales is None:
        scales = weight_scales(tf.convert_to_tensor(weights), bits, axes).numpy()
    steps = np.divide(weights, scales, out=np.array(weights), where=scales > 0.0)
    return bool((np.abs(steps - np.round(steps)) < 1e-3).all())


Factors: TypeAlias = "Callable[[Mapping[str, Any], Mapping[str, Any]], tf.Tensor]"
"""Function of the weights and moving statistics that returns the factors on a kernel."""


def folded_by_kernel(network: Network, kernels: Sequence[Kernel]) -> dict[str, Factors]:
    """Return, by kernel, functions for the factors gamma / sqrt(variance + epsilon) of batch norms folded into them."""
    names = {id(variable): name for name, variable in network.variables.items()}
    norms = {id(layer.kernel): (layer, norm) for layer, norm in folded_norms(network.model)}

    def factors(kernel: Kernel, weights: Mapping[str, Any], state: Mapping[str, Any]) -> tf.Tensor:
        layer, norm = norms[id(kernel.variable)]
        scale = tf.math.rsqrt(tf.cast(state[names[id(norm.moving_variance)]], tf.float32) + norm.epsilon)
        scale = scale * {**state, **weights}[names[id(norm.gamma)]] if norm.scale else scale  # if frozen, in state
        return tf.reshape(scale, fold_shape(layer, kernel.variable))

    return {each.name: partial(factors, each) for each in kernels if id(each.variable) in norms}


SMALLEST = 0.01  # lower bound on the factors of initial steps: no step becomes 0 or negative
Quantize: TypeAlias = "Callable[[tf.Tensor, tf.Tensor, int], tf.Tensor]"


def multiples(factors: tf.Tensor) -> tf.Tensor:
    """Return the factors by which initial steps are multiplied, at least `SMALLEST`."""
    return tf.maximum(factors, SMALLEST)


def step_gradients(
    upstream: tf.Tensor, scaled: tf.Tensor, levels: tf.Tensor, ends: tuple[Any, Any], axes: Sequence[int] | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the unscaled gradients of values and of their steps (Esser et al. 2020, equations 3 and 5)."""
    inside = tf.logical_and(scaled > ends[0], scaled < ends[1])
    errors = levels - tf.where(inside, scaled, 0.0)
    return tf.where(inside, upstream, 0.0), tf.reduce_sum(upstream * errors, axis=axes, keepdims=axes is not None)


def weights_by_step(
    weights: tf.Tensor, initial: tf.Tensor, factors: tf.Tensor, bits: int, folded: tf.Tensor | None = None
) -> tf.Tensor:
    """Return weights rounded to steps initial * factors, symmetric in a narrow range; with `folded`, of w * folded."""
    # Adam moves a variable by about the learning rate: a step trained as a factor that starts at 1 moves by that share
    # of itself. The factor's gradient is the paper's divided by the initial step: SGD moves the step as in the paper.
    most = 2.0 ** (bits - 1) - 1.0
    axes = [axis for axis, size in enumerate(initial.shape) if size == 1]
    sharing = math.prod(weights.shape) / math.prod(initial.shape)

    @tf.custom_gradient
    def rounded(given: tf.Tensor, factors: tf.Tensor) -> tuple[tf.Tensor, object]:
        steps = initial * multiples(factors)
        scaled = tf.math.divide_no_nan(given, steps)
        levels = tf.clip_by_value(tf.round(scaled), -most, most)

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            of_values, of_steps = step_gradients(upstream, scaled, levels, (-most, most), axes)
            return of_values, tf.math.divide_no_nan(of_steps / math.sqrt(sharing * most), initial)

        return tf.where(steps > 0.0, levels * steps, given), gradients

    if folded is None:
        return rounded(weights, factors)
    return tf.math.divide_no_nan(rounded(weights * folded, factors), folded)


def activations_by_step(
    values: tf.Tensor, limits: tf.Tensor, factor: tf.Tensor, bits: int, quantize: Quantize
) -> tf.Tensor:
    """Return values [batch, ...] rounded by `quantize` to 2^bits levels between nudged `limits`, times a factor."""

    @tf.custom_gradient
    def rounded(given: tf.Tensor, factor: tf.Tensor) -> tuple[tf.Tensor, object]:
        initial = (limits[1] - limits[0]) / (2.0**bits - 1.0)
        step = initial * multiples(factor)
        ends = tf.round(limits / initial)
        found = quantize(given, ends * step, bits)

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            of_values, of_step = step_gradients(upstream, given / step, found / step, (ends[0], ends[1]), None)
            features = tf.cast(tf.size(given) / tf.shape(given)[0], tf.float32)
            return of_values, of_step * tf.math.rsqrt(features * ends[1]) / initial

        return found, gradients

    return tf.cast(rounded(tf.cast(values, tf.float32), factor), values.dtype)


def magnitudes(values: tf.Tensor, *, with_mean: bool = True) -> tf.Tensor:
    """Return the smallest and the largest value and, with `with_mean`, the mean of |value|: float32 [2] or [3]."""
    wide = tf.stop_gradient(tf.cast(values, tf.float32))
    mean = [tf.reduce_mean(tf.abs(wide))] if with_mean else []
    return tf.stack([tf.reduce_min(wide), tf.reduce_max(wide), *mean])


def initial_limits(seen: tf.Tensor, unsigned: tf.Tensor, bits: int) -> tf.Tensor:
    """Return the limits for steps of 2 mean|x| / sqrt(highest level), float32 [points, 2]."""
    half = 2.0 ** (bits - 1)
    lowest = tf.where(unsigned, 0.0, -half)
    highest = lowest + 2.0**bits - 1.0
    steps = 2.0 * seen[:, 2] * tf.math.rsqrt(highest)
    return tf.stack([lowest * steps, highest * steps], axis=-1)


class LearnedSteps:
    """Hold the learned steps of a network: those of its points, then those of its kernels."""

    initial: tf.Variable  # float32 [steps of kernels], 0 until initialized; set by `build`
    variable: keras.Variable  # the factors in the network; set by `build`
    name: str  # of that variable

    def __init__(self, kernels: Sequence[tuple[keras.Variable, Sequence[int]]], points: int) -> None:
        """Set up steps for kernels, given with the negative axes along which steps differ, and for `points` points."""
        self._shapes = {id(variable): _broadcast(variable.shape, axes) for variable, axes in kernels}
        self._sizes = [points, *(math.prod(shape) for shape in self._shapes.values())]
        self._unsigned = np.zeros([points], bool)
        self.inputs: set[int] = set()  # the points that round inputs of the network: their ranges are averages

    def attached(self, model: keras.Model) -> keras.Model:
        """Return the model with the factors among its variables, in a layer after its first output."""
        from hookline.hooks.quantization.layers import ActivationQuantizer, StepSizes

        graph = as_functional(model)
        layers = {path: each for path, each in layer_paths(model).items() if isinstance(each, ActivationQuantizer)}
        signed, derived, names = set[int](), set[int](), [each.name for each in graph.inputs]
        for path, calls in trace_kernel_inputs(model, layers).calls.items():
            point = layers[path].point
            signed |= set() if all(each.non_negative for each in calls) else {point}
            derived |= set() if layers[path].after in names else {point}
        self._unsigned = np.array([point not in signed for point in range(self._sizes[0])], bool)
        self.inputs = set(range(self._sizes[0])) - derived
        self._layer = StepSizes(sum(self._sizes), name="step_sizes")
        mark_added(self._layer, "quantization_aware_training")
        first, *others = graph.outputs
        packed = keras.tree.pack_sequence_as(graph._outputs_struct, [self._layer(first), *others])
        return keras.Model(graph._inputs_struct, packed, name=model.name)

    def build(self, network: Network) -> None:
        """Find the factors in the network, and create the initial steps."""
        self.initial = tf.Variable(tf.zeros([sum(self._sizes[1:])]), trainable=False, name="steps")
        self.variable = self._layer.factors
        self.name = next(name for name, each in network.trainable_variables.items() if each is self.variable)

    def of_points(self, factors: tf.Tensor) -> tf.Tensor:
        """Return the factors of points, float32 [points]."""
        return tf.split(factors, self._sizes)[0]

    def of_kernels(self, factors: tf.Tensor) -> dict[int, tuple[tf.Tensor, tf.Tensor]]:
        """Return initial steps and factors by the id of the kernel, in shapes that broadcast to it."""
        initial = tf.split(tf.convert_to_tensor(self.initial), self._sizes[1:])
        pairs = zip(self._shapes.items(), initial, tf.split(factors, self._sizes)[1:], strict=True)
        return {key: (tf.reshape(own, shape), tf.reshape(factor, shape)) for (key, shape), own, factor in pairs}

    def new_initial(self, kernels: Mapping[int, tf.Tensor], factors: tf.Tensor, bits: int) -> tf.Tensor:
        """Return initial steps; those that were 0 become 2 mean|w| / sqrt(highest level), divided by the factor."""
        means = []
        for key, shape in self._shapes.items():
            axes = [axis for axis, size in enumerate(shape) if size == 1]
            means.append(tf.reshape(tf.reduce_mean(tf.abs(kernels[key]), axis=axes), [-1]))
        steps = 2.0 / math.sqrt(2.0 ** (bits - 1) - 1.0) * tf.concat(means, axis=0)
        old = tf.convert_to_tensor(self.initial)
        return tf.where(old > 0.0, old, steps / multiples(factors[self._sizes[0] :]))

    def new_ranges(self, ranges: tf.Tensor, seen: tf.Tensor, factors: tf.Tensor, bits: int) -> tf.Tensor:
        """Return initial limits; those that were [0, 0] are computed from `seen`, divided by the factor."""
        made = initial_limits(seen, tf.constant(self._unsigned), bits) / multiples(self.of_points(factors))[:, None]
        return tf.where(tf.reduce_all(ranges == 0.0, axis=-1, keepdims=True), made, ranges)


def _broadcast(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Return a shape with size 1 on all axes except those given."""
    return tuple(size if place - len(shape) in axes else 1 for place, size in enumerate(shape))
