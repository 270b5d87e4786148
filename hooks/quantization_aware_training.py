"""Quantization-aware training: train and evaluate a network with integers of up to 8 bits, as it ships."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks import options
from hookline.hooks.graphs import calls_frozen, calls_replaced
from hookline.hooks.kernels import (
    Kernel,
    find_kernels,
    is_kernel_layer,
    left_out_advice,
    own_kernels,
    relative_distance,
)
from hookline.hooks.quantization import fake
from hookline.hooks.quantization.activation_places import Inserter, Pass, write_out_quantizers
from hookline.hooks.quantization.selection import left_to_others, refuse_quantized
from hookline.trainer.errors import UserError, check_choice, check_integer, check_number
from hookline.trainer.graph import is_graph, is_of, layer_paths, select_layers
from hookline.trainer.hook import Bits, Declaration, GraphHook, Run, Tensors
from hookline.trainer.step.context import BuildContext, StepContext

LEARNED = "learned"
NEVER = 2**62  # steps


class QuantizationAwareTraining(GraphHook):
    """Train a network with the weights and activations of an integer runtime, such as LiteRT.

    The forward pass rounds kernels to a symmetric grid, with one step size for each output channel of a convolution,
    and one for each dense layer and each transposed convolution. It rounds activations to 2^bits levels between limits
    that follow a moving average; tanh, sigmoid and softmax have the fixed range that runtimes give them. Latent weights
    stay float and train through the rounding. Evaluations round too, so they report the network that ships.
    `scripts/export.py format=litert` writes an integer-only file with these ranges, without calibration; `format=onnx`
    writes the same with QDQ nodes.

    Activations are rounded wherever a runtime writes a tensor: at the network's inputs, and at the outputs of layers
    and of operations such as sums. A layer, its batch norm and the ReLU, ReLU6 or hard_tanh after it count as one
    layer; any other activation, even one inside a layer (activation="tanh"), counts as a separate layer. Max and
    average pooling, reshaping and padding keep the range of their input; global average pooling has its own.

    Batch norm after a layer with a single step size is folded into the kernel, with the moving statistics, before
    rounding; after other layers this is not needed: with a step size for each channel, rounding and folding commute.

    The pattern "*" leaves out kernels that `bnn_rounding` rounds, and other patterns must not match them. Inputs that
    `bnn_rounding` rounds are not rounded again. The integer file holds binary kernels exactly, but no binary inputs.

    With `ranges=learned` the optimizer trains the step sizes, without weight decay (LSQ). They start from mean
    magnitudes; for activations, from those in the first batch after `begin_epoch`. Activations that the graph shows to
    be non-negative have unsigned levels. The network's inputs keep a moving average as their range.

    From `freeze_epoch` on, batch norm uses its moving statistics in training too, and neither these nor the range
    averages change: the network trains as it ships.

    In a subclassed model only weights are rounded. Pruned networks stay pruned. Clustered kernels of convolutions, and
    of dense layers before batch norm, get more values: each centroid is rounded to the steps of each channel. Biases
    and other weights, such as those of recurrent layers, stay float.

    Group: technique

    Equation:
        weights:      s = max|w| / (2^(bits - 1) - 1), over a channel of a convolution or a whole other kernel
                      w_q = s round(w / s),   dL/dw = dL/dw_q
        activations:  s = (b - a) / n,   z = round(-a / s),   x_q = s (clip(round(x / s) + z, 0, n) - z)
                      with n = 2^bits - 1;   dL/dx = dL/dx_q where x lies in [-s z, s (n - z)], else 0
        ranges:       a <- d a + (1 - d) min(min x, 0),   b <- d b + (1 - d) max(max x, 0), over the whole batch
                      a, b: limits of an activation's range;  d = range_decay;  bits: of weights or of activations
        learned:      x_q = s clip(round(x / s), -q, p),   at first s = 2 mean|x| / sqrt(p)
                      with q = p = 2^(bits - 1) - 1 for weights; for activations
                      q = 2^(bits - 1), or 0 for unsigned levels, and p = 2^bits - 1 - q
                      dL/dx = dL/dx_q where -q < x / s < p, else 0
                      dx_q/ds = round(x / s) - x / s where -q < x / s < p, else -q (below) or p (above)
                      s trains by dL/ds / sqrt(p N), N: how many entries of x share s; of activations, in one example

    State:
        ranges: one row for each rounded activation: its limits a and b. The rows of tanh, sigmoid and softmax are
            fixed. With ranges=average the other rows start from the first batch and keep moving. With ranges=learned
            only the rows of the network's inputs do this. The rest are set once, in the first batch after
            `begin_epoch`; then the layer `step_sizes` trains a factor for each of them. It also trains one for each
            initial step size of a kernel (state `steps`). All factors start at 1.
        active: whether the network is quantized; true from the end of the first step after `begin_epoch`.

    Scalars:
        quantization_aware_training/distance: root mean square of w_q - w, divided by that of w.

    Cost: Four passes over each activation, three over each kernel.

    Pitfalls:
        tests/hooks/quantization/test_fake.py: a range without 0 would make zero padding inexact.
        tests/hooks/test_quantization_aware_training.py: ranges change once per step, even with micro batches; y = w +
            stop_gradient(w_q - w) is not exactly on the grid.
        tests/hooks/quantization/test_learned_steps.py: without a scaled gradient, step sizes change much faster
            than weights.
        tests/deploy/test_integer.py: the integer file is compared with the evaluation of the run.

    Reference: Jacob et al. 2018, arXiv 1712.05877, sections 2.1 and 3; Krishnamoorthi 2018, arXiv 1806.08342, sections
        3 (steps by channel) and 3.2 (frozen statistics); Esser et al. 2020, arXiv 1902.08153, section 2 (learned
        steps).

    Example:
        python train.py recipe=int8
        python train.py recipe=int8 +hooks=bnn_rounding hooks.bnn_rounding.input_quantizer=null
        python train.py recipe=int8 hooks.quantization_aware_training.ranges=learned
    """

    after = (
        *("prune", "frozen_mask", "weight_clustering", "ema", "bnn_rounding"),
        *("fused_batch_norm", "synchronized_batch_norm"),
    )
    conflicts = ("bop", "incremental_quantization")
    priority = 80

    def __init__(
        self,
        *,
        layers: str | Sequence[str] = "*",
        weight_bits: int = 8,
        activation_bits: int | None = 8,
        ranges: str = "average",
        begin_epoch: float = 0.0,
        freeze_epoch: float | None = None,
        range_decay: float = 0.99,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers whose kernels are rounded: dense layers and convolutions.
            weight_bits: 2 to 8.
            activation_bits: 4 to 8, or None to round only weights.
            ranges: "average": the largest |w| and moving averages of extremes give step sizes; "learned": the
                optimizer trains them (LSQ).
            begin_epoch: 0 or more; the network is float before it, but averages move from the first step on.
            freeze_epoch: 0 or more; moving statistics and averages of ranges are frozen from there on. None: never.
            range_decay: in [0, 1); decay of the moving averages of ranges.
            network: name of the network.
        """
        self.layers = layers
        self.weight_bits = check_integer("weight_bits", weight_bits, minimum=2, maximum=8)
        self.activation_bits = activation_bits
        if activation_bits is not None:
            self.activation_bits = check_integer("activation_bits", activation_bits, minimum=4, maximum=8)
        self.ranges = check_choice("ranges", ranges, ("average", LEARNED))
        self.begin_epoch = check_number("begin_epoch", begin_epoch, 0)
        self.freeze_epoch = None if freeze_epoch is None else check_number("freeze_epoch", freeze_epoch, 0)
        self.range_decay = check_number("range_decay", range_decay, minimum=0.0, maximum=1.0 - 1e-6)
        self.network = network
        self._now = Pass(self.activation_bits or 8)
        self._inserter = Inserter(self._now)
        self._learned: fake.LearnedSteps | None = None
        self._batch_norms: list[keras.layers.BatchNormalization] = []
        self._freeze = NEVER
        self._statistics: list[str] = []
        self._ranges: tf.Variable | None = None
        self._pass: tuple[Any, dict[int, list[tf.Tensor]]] = (None, {})

    def rebuild_model(self, model: keras.Model) -> keras.Model:
        if not is_graph(model):
            if self.ranges == LEARNED:
                raise UserError(f"'{model.name}' is subclassed. Expected a functional model, or ranges=average.")
            return model
        refuse_quantized(model, activations=self.activation_bits is not None, steps=self.ranges == LEARNED)
        made = model if self.activation_bits is None else self._inserter.rebuilt(model)
        if self.ranges != LEARNED:
            return made
        chosen = select_layers(made, self.layers, accept=is_kernel_layer, kind="kernel layer").values()
        kernels = [(kernel, fake.step_axes(layer, kernel)) for layer in chosen for kernel in own_kernels(layer)]
        self._learned = fake.LearnedSteps(kernels, len(self._inserter.names))
        return self._learned.attached(made)

    def strip_model(self, model: keras.Model) -> keras.Model:
        ranges = None if self._ranges is None or not self._active.numpy() else self._limits(shipped=True).numpy()
        return write_out_quantizers(model, ranges, self._now)

    def build(self, context: BuildContext) -> None:
        self._network = context.network
        chosen = select_layers(self._network.model, self.layers, accept=is_kernel_layer, kind="kernel layer")
        kernels = find_kernels(self._network, chosen)
        self._others = left_to_others(kernels, self.layers, self.key, context)
        self._kernels = [kernel for kernel in kernels if kernel not in self._others]
        self._axes = {kernel.name: fake.step_axes(chosen[kernel.layer], kernel.variable) for kernel in self._kernels}
        undivided = [each for each in self._kernels if not self._axes[each.name]]
        self._norms = fake.folded_by_kernel(self._network, undivided)
        self._begin = options.begin_step(self.begin_epoch, context)
        self._active = tf.Variable(False, trainable=False, name="active")
        if count := len(self._inserter.names):
            fixed = self._inserter.fixed
            first = [fixed.get(index, (0.0, 0.0)) for index in range(count)]
            averaged = () if self._learned is None else self._learned.inputs
            self._fixed, self._averaged = ([index in group for index in range(count)] for group in (fixed, averaged))
            self._ranges = tf.Variable(tf.constant(first, tf.float32), trainable=False, name="ranges")
        self._extremes = f"{self.name}/extremes"
        if self._learned is not None:
            self._learned.build(context.network)
            options.exclude_from_decay(context.network.optimizer, self._learned.variable)
        if self.freeze_epoch is not None:
            self._freeze = options.begin_step(self.freeze_epoch, context, "freeze_epoch")
            layers = layer_paths(self._network.model).values()
            self._batch_norms = [each for each in layers if is_of(each, ["BatchNormalization"])]
            moving = {id(each) for layer in self._batch_norms for each in layer.non_trainable_variables}
            variables = self._network.state_variables
            self._statistics = [name for name, each in variables.items() if id(each) in moving]

    def declare(self) -> Declaration:
        state = {"active": self._active}
        state |= {} if self._ranges is None else {"ranges": self._ranges}
        state |= {} if self._learned is None else {"steps": self._learned.initial}
        names = {kernel.name for kernel in self._kernels}
        return Declaration(state, writes=state, rounded=names, best_from_step=self._begin + 1)

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return the bits of each kernel that lies on its grid, and those of activations."""
        stored, weights, learned = {}, {}, self._learned
        steps = {} if learned is None else learned.of_kernels(tf.convert_to_tensor(shipped[learned.name]))
        if learned is not None:
            stored[learned.name] = 0.0  # kernel scales are counted below, activation ranges never
        for kernel in self._kernels:
            values, axes, scales = shipped[kernel.name], self._axes[kernel.name], None
            if kernel.name in self._norms:
                values = values * np.asarray(self._folded_by(kernel, shipped, shipped))
            if learned is not None:
                initial, factors = steps[id(kernel.variable)]
                scales = (initial * fake.multiples(factors)).numpy()
            if fake.on_grid(values, self.weight_bits, axes, scales):
                channels = math.prod(values.shape[axis] for axis in axes)
                stored[kernel.name] = self.weight_bits + 32.0 * channels / kernel.size
                weights[kernel.name] = self.weight_bits
        rounded = self._ranges is not None and bool(self._active.numpy())
        inputs = {kernel.layer: self._now.bits for kernel in (*self._kernels, *self._others) if rounded}
        return Bits(stored, weights, inputs)

    def frozen_entries(self, context: StepContext) -> Tensors:
        return dict.fromkeys(self._statistics, context.step > self._freeze)

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        if not self._kernels:
            return weights
        given = [weights[kernel.name] for kernel in self._kernels]
        learned = self._learned
        steps = None if learned is None else learned.of_kernels(weights[learned.name])

        def rounded() -> list[tf.Tensor]:
            found = []
            for kernel, value in zip(self._kernels, given, strict=True):
                folded = self._folded_by(kernel, weights, context.state)
                if steps is None:
                    found.append(fake.quantize_weights(value, self.weight_bits, self._axes[kernel.name], folded))
                else:
                    found.append(fake.weights_by_step(value, *steps[id(kernel.variable)], self.weight_bits, folded))
            return found

        made = tf.cond(tf.convert_to_tensor(self._active), rounded, lambda: [tf.identity(each) for each in given])
        return {**weights, **{kernel.name: each for kernel, each in zip(self._kernels, made, strict=True)}}

    def _folded_by(self, kernel: Kernel, weights: Mapping[str, Any], state: Mapping[str, Any]) -> tf.Tensor | None:
        """Return the factors of batch norm that are folded into a kernel before rounding, or None."""
        if kernel.name not in self._norms:
            return None
        factors = tf.stop_gradient(self._norms[kernel.name](weights, state))
        # Learned steps need not follow the statistics, so their factors have a mean of 1.
        return factors if self._learned is None else tf.math.divide_no_nan(factors, tf.reduce_mean(tf.abs(factors)))

    @contextmanager
    def around_forward(self, context: StepContext) -> Iterator[None]:
        now, batch_norms = self._now, self._batch_norms if context.training else []
        if self._ranges is not None:
            if self._pass[0] is not context:
                self._pass = (context, {})  # several calls in one pass are combined
            now.ranges, now.active = self._limits(), tf.convert_to_tensor(self._active)
            now.seen = self._pass[1] if context.training else None
            if self._learned is not None:
                now.factors = self._factors(self._learned, context.weights[self._learned.name])
                now.averaged = self._learned.inputs
        try:
            with calls_replaced(calls_frozen(batch_norms, context.step >= self._freeze) if batch_norms else ()):
                yield
        finally:
            now.ranges = now.active = now.seen = now.factors = None

    def _limits(self, *, shipped: bool = False) -> tf.Tensor:
        """Return the ranges for rounding, float32 [points, 2]; shipped ones include learned factors."""
        limits = fake.nudged(tf.convert_to_tensor(self._ranges), self._now.bits)
        if self._learned is None or not shipped:
            return limits
        factors = self._factors(self._learned, tf.convert_to_tensor(self._learned.variable.value))
        return limits * fake.multiples(factors)[:, None]

    def _factors(self, learned: fake.LearnedSteps, factors: tf.Tensor) -> tf.Tensor:
        """Return the factors of the ranges, float32 [points]; 1 for inputs and for ranges that runtimes fix."""
        return tf.where(np.logical_or(self._fixed, self._averaged), 1.0, learned.of_points(factors))

    def add_losses(self, context: StepContext) -> Tensors:
        """Store the extremes of the pass, [1, points, 2 or 3], in the taps, for each micro batch."""
        owner, seen = self._pass
        if owner is context and seen and self._ranges is not None:
            points = range(len(self._inserter.names))
            unseen = [self._ranges[index] if self._learned is None else tf.zeros([3]) for index in points]
            rows = [fake.widest(tf.stack(seen.get(index, [unseen[index]]))) for index in points]
            context.taps[self._extremes] = tf.stack(rows)[None]
        self._pass = (None, {})
        return {}

    def veto(self, context: StepContext) -> Tensors:
        """Return whether an extreme is not finite, which would corrupt ranges for good; named for `nan_guard`."""
        seen = context.taps.get(self._extremes)
        return {} if seen is None else {f"state/{self.key}/ranges": ~tf.reduce_all(tf.math.is_finite(seen))}

    def batch_sums(self, context: StepContext) -> Tensors:
        """Return the extremes in this replica's own row, so that the sums contain those of all replicas."""
        if context.replica.count == 1 or self._extremes not in context.taps:
            return {}
        before, after = context.replica.index, context.replica.count - context.replica.index - 1
        return {"extremes": tf.pad(fake.widest(context.taps[self._extremes])[None], [[before, after], [0, 0], [0, 0]])}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        begun = tf.logical_or(tf.convert_to_tensor(self._active), context.step >= self._begin)
        operations = [self._active.assign(begun)]
        seen = context.sums.get(self._extremes, context.taps.get(self._extremes))
        if seen is not None and self._ranges is not None:
            ranges = tf.convert_to_tensor(self._ranges)
            moves = ~tf.constant(self._fixed)[:, None]
            seen, average = fake.widest(seen), context.step < self._freeze
            moved = fake.moved_ranges(ranges, seen[:, :2], self.range_decay)
            if self._learned is None:
                moves &= average
            else:
                inputs, factors = tf.constant(self._averaged)[:, None], context.latent[self._learned.name]
                moves &= tf.where(inputs, average, begun)
                moved = tf.where(inputs, moved, self._learned.new_ranges(ranges, seen, factors, self._now.bits))
            operations.append(self._ranges.assign(tf.where(moves, moved, ranges)))
        if self._learned is not None:
            operations.append(self._learned.initial.assign(self._steps_after(self._learned, begun, context)))
        return operations

    def _steps_after(self, learned: fake.LearnedSteps, begun: tf.Tensor, context: StepContext) -> tf.Tensor:
        """Return the kernels' initial step sizes after this step; they are set in the first step that rounds."""
        initial = tf.convert_to_tensor(learned.initial)

        def made() -> tf.Tensor:
            kernels = {}
            for kernel in self._kernels:
                folded = self._folded_by(kernel, context.weights, context.state)
                value = context.weights[kernel.name]
                kernels[id(kernel.variable)] = value if folded is None else value * folded
            return learned.new_initial(kernels, context.latent[learned.name], self.weight_bits)

        missing = tf.logical_and(begun, tf.reduce_any(initial == 0.0))
        return tf.cond(missing, made, lambda: tf.identity(initial))

    def measure(self, context: StepContext) -> Tensors:
        if not self._kernels:
            return {}
        return {f"{self.key}/distance": relative_distance(context, [kernel.name for kernel in self._kernels])}

    def summary(self) -> dict[str, Any]:
        learned = self._learned is not None
        ranges = [] if self._ranges is None else (self._limits(shipped=True) if learned else self._ranges).numpy()
        return {
            "weight_bits": self.weight_bits,
            "activation_bits": None if self._ranges is None else self.activation_bits,
            "begin_step": self._begin,
            **({} if self.freeze_epoch is None else {"freeze_step": self._freeze}),
            "ranges": [[name, *each.tolist()] for name, each in zip(self._inserter.names, ranges, strict=True)],
        }

    def advise(self, run: Run) -> Sequence[str]:
        lines = []
        if self.activation_bits is not None and self._ranges is None:
            name = self._network.model.name
            lines.append(
                f"The graph of '{name}' is not known, so only weights are quantized, and no integer file can be "
                "written. Expected a functional or Sequential model, or activation_bits=null."
            )
        separable = [kernel.layer for kernel in self._kernels if kernel.variable.name == "pointwise_kernel"]
        if separable and self._ranges is not None and self.activation_bits == 8:
            lines.append(
                f"LiteRT has no int8 for '{separable[0]}', a separable convolution: no integer file can be written. "
                "Replace it with a depthwise and a 1x1 convolution."
            )
        covered = [kernel.name for kernel in (*self._kernels, *self._others)]
        reason = "Only dense layers and convolutions are quantized."
        return lines + left_out_advice(self._network, self.layers, covered, state="in full precision", reason=reason)
