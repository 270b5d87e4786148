"""Quantization-aware training: a network of 8-bit integers, as it ships, is what trains and what is evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import (
    CONVOLUTIONS,
    DEPTHWISE,
    SEPARABLE,
    Kernel,
    find_kernels,
    is_kernel_layer,
    left_out_advice,
)
from hookline.hooks.options import begin_step, check_epochs, check_integer, check_number, check_patterns
from hookline.hooks.quantization.activation_places import Inserter, Pass
from hookline.hooks.quantization.fake import moved_ranges, nudged, on_grid, quantize_weights
from hookline.hooks.rebuild import call_anew
from hookline.trainer.errors import UserError
from hookline.trainer.graph import fold_shape, folded_norms, is_graph, is_of
from hookline.trainer.hook import Bits, Declaration, GraphHook, Tensors
from hookline.trainer.network import Network
from hookline.trainer.ops.averages import STRETCH, STRETCHED, middle
from hookline.trainer.select import layer_paths, select_layers
from hookline.trainer.step.context import BuildContext, StepContext

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run


@dataclass(frozen=True)
class Norm:
    """Name what a batch norm multiplies the channels of a layer by."""

    gamma: str | None  # names of variables
    variance: str
    epsilon: float
    shape: tuple[int, ...]  # in which the factors multiply the kernel

    def factors(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> tf.Tensor:
        """Return gamma / sqrt(variance + epsilon), of the moving statistics."""
        scale = tf.math.rsqrt(tf.cast(state[self.variance], tf.float32) + self.epsilon)
        return tf.reshape(scale if self.gamma is None else scale * weights[self.gamma], self.shape)


class QuantizationAwareTraining(GraphHook):
    """Train a network whose weights and activations are those of an integer runtime, such as LiteRT.

    The forward pass rounds kernels to a symmetric grid: one quantization step for each output channel of a convolution,
    one for each dense layer. It rounds activations to 2^bits levels between limits that follow a moving average. Latent
    weights stay float and are trained through the rounding. Evaluations round as well, so they report the network that
    ships. `scripts/export.py format=litert` writes a file of integers only, with these ranges, without calibration;
    `format=onnx` writes the same with QuantizeLinear and DequantizeLinear.

    Activations are rounded wherever a runtime writes a tensor: at the network's inputs, and at the outputs of layers
    and of operations such as sums. A layer, its batch norm and the ReLU after it count as one layer. Pooling, reshaping
    and padding keep the range of their input; average pooling rounds halves as LiteRT does, away from the value of
    integer 0. An activation inside of a layer, other than ReLU, is computed from rounded values, as if it were a layer
    of its own; swish is its input times a rounded sigmoid.

    Batch norm of a convolution needs no folding in training: with one quantization step for each channel, rounding and
    folding commute. The kernel of a dense layer before batch norm is folded with the moving statistics before rounding.

    With `bnn_rounding` or `bop` some layers are binary and the others have integers: "*" leaves out their kernels, and
    other patterns must not name them. What `bnn_rounding` rounds before a layer, such as to its sign, is rounded by it
    alone. The integer file holds binary kernels exactly; it cannot hold such inputs.

    In a model without a known graph, such as a subclassed one, only weights are rounded. Zeros stay zeros, so pruned
    networks stay pruned. Biases and other weights, such as those of recurrent layers, stay float.

    Group:
        technique

    Equation:
        weights:      s = max|w| / (2^(bits - 1) - 1) of a channel,   w_q = s round(w / s),   dL/dw = dL/dw_q
        activations:  s = (b - a) / n,   z = round(-a / s),   x_q = s (clip(round(x / s) + z, 0, n) - z)
                      with n = 2^bits - 1;   dL/dx = dL/dx_q where x lies in [-s z, s (n - z)], else 0
        ranges:       a <- d a + (1 - d) min(min x, 0),   b <- d b + (1 - d) max(max x, 0), over the whole batch

    State:
        ranges: a and b of each rounded activation, float32 [points, 2]; initially those of the first batch.
        active: whether the network is quantized; true from the step after `begin_epoch` on.

    Scalars:
        quantization_aware_training/distance: root mean square of w_q - w, divided by that of w.

    Cost:
        Two passes over each activation for its extremes, one to round it and one for the gradient; three passes over
        each kernel.

    Pitfalls:
        tests/hooks/quantization/test_fake.py: weights and activations are rounded as NumPy rounds them. A range without
            0 would make zero padding inexact. With one step for all channels, rounding and batch norm folding would not
            commute. Both ends of a range pass the gradient.
        tests/hooks/test_quantization_aware_training.py: ranges change once a step, also with micro batches, and not in
            a skipped step; y = w + stop_gradient(w_q - w) would leave the grid. Binary kernels are not rounded again.
        tests/deploy/test_integer.py: the integer file is compared with the evaluation of the run.

    Reference:
        Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
        Inference", arXiv 1712.05877, sections 2.1 and 3; Krishnamoorthi 2018, arXiv 1806.08342, section 3, for steps by
        channel.

    Example:
        python train.py recipe=int8
        python train.py recipe=baseline model=mlp +hooks=quantization_aware_training
        python train.py recipe=int8 hooks.quantization_aware_training.weight_bits=4
        python train.py recipe=int8 +hooks=bnn_rounding hooks.bnn_rounding.input_quantizer=null
    """

    after = ("prune", "frozen_mask", "weight_clustering", "ema", "bnn_rounding", "bop")
    conflicts = ("incremental_quantization",)
    priority = 80

    def __init__(
        self,
        *,
        layers: str | Sequence[str] = "*",
        weight_bits: int = 8,
        activation_bits: int | None = 8,
        begin_epoch: float = 0.0,
        range_decay: float = 0.99,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers whose kernels are rounded: dense layers and convolutions.
            weight_bits: 2 to 8.
            activation_bits: 4 to 8, or None: weights alone are rounded.
            begin_epoch: 0 or more; the network is float before it. Ranges are followed from the first step on.
            range_decay: from 0 to below 1: what a step leaves of a range.
            network: name of the network.
        """
        self.layers = check_patterns("layers", layers)
        self.weight_bits = check_integer("weight_bits", weight_bits, minimum=2, maximum=8)
        self.activation_bits = activation_bits
        if activation_bits is not None:
            self.activation_bits = check_integer("activation_bits", activation_bits, minimum=4, maximum=8)
        self.begin_epoch = check_epochs("begin_epoch", begin_epoch)
        self.range_decay = check_number("range_decay", range_decay, minimum=0.0, maximum=1.0 - 1e-6)
        self.network = network
        self._now = Pass(self.activation_bits or 8)
        self._inserter = Inserter(self._now)
        self._kernels: list[Kernel] = []
        self._others: list[Kernel] = []  # that another hook rounds
        self._norms: dict[str, Norm] = {}
        self._begin = 0
        self._ranges: tf.Variable | None = None
        self._active: Any = None  # the variable, once built
        self._pass: tuple[Any, dict[int, list[tf.Tensor]]] = (None, {})

    def rebuild_model(self, model: keras.Model) -> keras.Model:
        if self.activation_bits is None or not is_graph(model):
            return model
        return self._inserter.rebuilt(model)

    def strip_model(self, model: keras.Model) -> keras.Model:
        """Return the model with Keras's fake quantization of constant ranges in place of quantizers."""
        from hookline.hooks.quantization.activation_quantizer import ActivationQuantizer

        ranges = None if self._ranges is None or not self._active.numpy() else self._limits().numpy()

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(layer, ActivationQuantizer):
                return layer(*args, **kwargs)
            inputs = args[0] if args else kwargs["inputs"]
            if ranges is None or layer.point.left_out:
                return inputs
            limits = ranges[layer.point.index]
            if layer.point.averages:
                inputs = _stretched(inputs, limits, self._now.bits, layer.name)
            return _fake_quantized(inputs, limits, self._now.bits)

        return call_anew(model, lambda layer: isinstance(layer, ActivationQuantizer), call)

    def build(self, context: BuildContext) -> None:
        self._network = context.network
        chosen = select_layers(self._network.model, self.layers, accept=is_kernel_layer, kind="kernel layer")
        kernels = find_kernels(self._network, chosen)
        self._others = self._left_to(context.rounded, kernels)
        self._kernels = [kernel for kernel in kernels if kernel not in self._others]
        self._norms = _norms(self._network, [kernel for kernel in self._kernels if not self._axes(kernel)])
        # What ships ends with the softmax inside of such a layer, so its logits are not written.
        self._inserter.leave_out([each.operation.name for each in context.network.final_activations if each.attribute])
        self._begin = begin_step(self.begin_epoch, context)
        self._active = tf.Variable(False, trainable=False, name="active")
        if count := len(self._inserter.names):
            first = [self._inserter.fixed.get(index, (0.0, 0.0)) for index in range(count)]
            self._ranges = tf.Variable(tf.constant(first, tf.float32), trainable=False, name="ranges")

    def _left_to(self, rounded: Mapping[str, str], kernels: Sequence[Kernel]) -> list[Kernel]:
        """Return the kernels that "*" leaves to other hooks; other patterns must choose none of them."""
        taken = [kernel for kernel in kernels if kernel.name in rounded]
        if taken and "*" not in ([self.layers] if isinstance(self.layers, str) else self.layers):
            key, other = self.key or "quantization_aware_training", rounded[taken[0].name]
            raise UserError(
                f"Two hooks round the kernel '{taken[0].name}': {other} and {key}. Expected one hook for each kernel: "
                f"other patterns for hooks.{other}.layers or hooks.{key}.layers, where '*' leaves out what {other} has."
            )
        return taken

    def declare(self) -> Declaration:
        state = {} if self._active is None else {"active": self._active}
        state |= {} if self._ranges is None else {"ranges": self._ranges}
        names = {kernel.name for kernel in self._kernels}
        return Declaration(state, writes=state, rounded=names, best_from_step=self._begin + 1)

    def _axes(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the axes of a kernel that have steps of their own."""
        layer = layer_paths(self._network.model)[kernel.layer]
        return kernel.channel_axes if is_of(layer, (*CONVOLUTIONS, *DEPTHWISE, *SEPARABLE)) else ()

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return the bits of each kernel that lies on its grid, and those of activations."""
        stored, weights = {}, {}
        for kernel in self._kernels:
            values, axes, norm = shipped[kernel.name], self._axes(kernel), self._norms.get(kernel.name)
            if norm is not None:
                values = values * norm.factors(shipped, shipped).numpy()
            if on_grid(values, self.weight_bits, axes):
                scales = int(np.prod([values.shape[axis] for axis in axes]))
                stored[kernel.name] = self.weight_bits + 32.0 * scales / kernel.size
                weights[kernel.name] = self.weight_bits
        rounded = self._ranges is not None and bool(self._active.numpy())
        inputs = {kernel.layer: self._now.bits for kernel in (*self._kernels, *self._others) if rounded}
        return Bits(stored, weights, inputs)

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        if not self._kernels:
            return weights
        given = [weights[kernel.name] for kernel in self._kernels]

        def rounded() -> list[tf.Tensor]:
            found = []
            for kernel, value in zip(self._kernels, given, strict=True):
                norm = self._norms.get(kernel.name)
                factors = None if norm is None else tf.stop_gradient(norm.factors(weights, context.state))
                found.append(quantize_weights(value, self.weight_bits, self._axes(kernel), factors))
            return found

        made = tf.cond(tf.convert_to_tensor(self._active), rounded, lambda: [tf.identity(each) for each in given])
        return {**weights, **{kernel.name: each for kernel, each in zip(self._kernels, _listed(made), strict=True)}}

    def around_forward(self, context: StepContext) -> AbstractContextManager[None]:
        return nullcontext() if self._ranges is None else self._rounding(context)

    @contextmanager
    def _rounding(self, context: StepContext) -> Iterator[None]:
        if self._pass[0] is not context:
            self._pass = (context, {})  # several calls of one pass add up
        now, seen = self._now, self._pass[1] if context.training else None
        now.ranges, now.active, now.seen = self._limits(), tf.convert_to_tensor(self._active), seen
        try:
            yield
        finally:
            now.ranges = now.active = now.seen = None

    def _limits(self) -> tf.Tensor:
        """Return the ranges on which values are rounded, float32 [points, 2]."""
        return nudged(tf.convert_to_tensor(self._ranges), self._now.bits)

    def add_losses(self, context: StepContext) -> Tensors:
        """Leave the extremes of the pass, [1, points, 2], among the taps: there is one of each micro batch."""
        owner, seen = self._pass
        if owner is context and seen and self._ranges is not None:
            rows = []
            for index in range(len(self._inserter.names)):
                calls = tf.stack(seen[index]) if index in seen else self._ranges[index][None]
                rows.append(tf.stack([tf.reduce_min(calls[:, 0]), tf.reduce_max(calls[:, 1])]))
            context.taps[self._extremes] = tf.stack(rows)[None]
        self._pass = (None, {})
        return {}

    @property
    def _extremes(self) -> str:
        return f"{self.name}/extremes"

    def batch_sums(self, context: StepContext) -> Tensors:
        """Return the extremes of each replica in a row of its own: their sums are those of all replicas."""
        if context.replica.count == 1 or self._extremes not in context.taps:
            return {}
        before, after = context.replica.index, context.replica.count - context.replica.index - 1
        return {"extremes": tf.pad(_widest(context.taps[self._extremes])[None], [[before, after], [0, 0], [0, 0]])}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        begun = tf.logical_or(tf.convert_to_tensor(self._active), context.step >= self._begin)
        operations = [self._active.assign(begun)]
        seen = context.sums.get(self._extremes, context.taps.get(self._extremes))
        if seen is not None and self._ranges is not None:
            ranges = tf.convert_to_tensor(self._ranges)
            moves = tf.constant([[index not in self._inserter.fixed] for index in range(len(self._inserter.names))])
            moved = moved_ranges(ranges, _widest(seen), self.range_decay)
            operations.append(self._ranges.assign(tf.where(moves, moved, ranges)))
        return operations

    def measure(self, context: StepContext) -> Tensors:
        if not self._kernels:
            return {}
        away, length = [], []
        for kernel in self._kernels:
            latent = tf.cast(context.latent[kernel.name], tf.float32)
            away.append(tf.reduce_sum(tf.square(tf.cast(context.weights[kernel.name], tf.float32) - latent)))
            length.append(tf.reduce_sum(tf.square(latent)))
        prefix = self.key or "quantization_aware_training"
        return {f"{prefix}/distance": tf.sqrt(tf.math.divide_no_nan(tf.add_n(away), tf.add_n(length)))}

    def summary(self) -> dict[str, Any]:
        ranges = [] if self._ranges is None else self._ranges.numpy().tolist()
        return {
            "weight_bits": self.weight_bits,
            "activation_bits": self.activation_bits if ranges else None,
            "begin_step": self._begin,
            "ranges": [[name, *limits] for name, limits in zip(self._inserter.names, ranges, strict=True)],
        }

    def advise(self, run: Run) -> Sequence[str]:
        lines = []
        if self.activation_bits is not None and self._ranges is None:
            name = self._network.model.name
            lines.append(
                f"The graph of '{name}' is not known, so weights alone are quantized, and no integer file can be "
                "written. Expected a functional or Sequential model, or activation_bits=null."
            )
        covered = [kernel.name for kernel in (*self._kernels, *self._others)]
        reason = "Dense layers and convolutions alone are quantized."
        return lines + left_out_advice(self._network, self.layers, covered, state="in full precision", reason=reason)


def _listed(values: Any) -> list[tf.Tensor]:
    """Return what a branch returned as a list: TensorFlow unpacks a list of one."""
    return list(values) if isinstance(values, list | tuple) else [values]


def _widest(extremes: tf.Tensor) -> tf.Tensor:
    """Return the extremes [points, 2] of all parts [parts, points, 2] of a batch."""
    return tf.stack([tf.reduce_min(extremes[..., 0], axis=0), tf.reduce_max(extremes[..., 1], axis=0)], axis=-1)


def _norms(network: Network, kernels: Sequence[Kernel]) -> dict[str, Norm]:
    """Return the batch norms that are folded into kernels, by the kernel's name."""
    names = {id(variable): name for name, variable in network.variables.items()}
    norms = {id(layer.kernel): (layer, norm) for layer, norm in folded_norms(network.model)}
    found = {}
    for kernel in (each for each in kernels if id(each.variable) in norms):
        layer, norm = norms[id(kernel.variable)]
        gamma = names[id(norm.gamma)] if norm.scale else None
        shape = fold_shape(layer, kernel.variable)
        found[kernel.name] = Norm(gamma, names[id(norm.moving_variance)], norm.epsilon, shape)
    return found


def _stretched(inputs: Any, limits: np.ndarray, bits: int, name: str) -> Any:
    """Return means stretched as `quantize_averages` does, by a layer of Keras."""
    low, high = limits.tolist()
    options = {"scale": 1.0 + STRETCH, "offset": -STRETCH * middle(low, high, bits)}
    return keras.layers.Rescaling(**options, name=f"{name}{STRETCHED}")(inputs)


def _fake_quantized(inputs: Any, limits: np.ndarray, bits: int) -> Any:
    """Return inputs rounded by an operation of Keras; its function forgets the bits of a Keras tensor."""
    from keras.src.quantizers.quantizers import FakeQuantWithMinMaxVars

    low, high = limits.tolist()
    return FakeQuantWithMinMaxVars(num_bits=bits)(inputs, low, high)
