"""Batch norm on TensorFlow's fused kernel, in training and in evaluation; the model is unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.graphs import calls_replaced
from hookline.trainer.errors import check_integer
from hookline.trainer.graph import layer_paths, select_layers
from hookline.trainer.hook import Declaration, GraphHook
from hookline.trainer.ops.batch_norm import FUSED_DTYPES, SMALLEST_EPSILON, fused_batch_norm, fused_scale_and_shift
from hookline.trainer.ops.graph_walk import with_outer_graphs
from hookline.trainer.step.context import BuildContext, StepContext


class FusedBatchNorm(GraphHook):
    """Compute the `BatchNormalization` layers of an unmodified model with the kernel FusedBatchNormV3.

    Outputs, gradients and moving statistics are the same within rounding. Inputs with fewer than `min_entries` entries
    are left to Keras: there the kernel would be slower, because it always divides its work among threads. With
    trainer.threads=1, set `min_entries=1000`.

    The `call` of the layers is replaced only while a forward pass is traced: model, checkpoints and exports stay the
    same.

    These cases are left to Keras: an axis other than the last, a mask, `renorm`, `synchronized`, an epsilon below
    1.001e-5, float64, a batch without a fixed size, steps that XLA compiles, subclasses with their own `call`, and
    passes whose gradients are overridden by op type. `summary.json` lists the layers with the reasons.

    Group: optimization

    Equation:
        training:    y = gamma (x - mean) / sqrt(var + epsilon) + beta, with the batch's mean and biased variance
                     moving <- momentum * moving + (1 - momentum) * the batch's
        evaluation:  the same y with the moving mean and variance

    Cost: On large inputs a layer takes a third to a half of the time of Keras's layer.

    Pitfalls:
        tests/hooks/test_fused_batch_norm.py: the kernel returns the unbiased variance; it is converted to the
            biased one, which Keras stores.
        tests/trainer/ops/test_batch_norm.py: derivatives up to third order are compared with those in float64.

    Reference: Ioffe and Szegedy 2015, "Batch Normalization", arXiv 1502.03167, algorithm 1.

    Example:
        python train.py recipe=attention hooks.fused_batch_norm.min_entries=1000
        python train.py recipe=baseline hooks.fused_batch_norm=null
    """

    def __init__(self, *, layers: str | Sequence[str] = "*", min_entries: int = 100_000, network: str = "*") -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of batch norm layers; "*" for all of them, even if there are none.
            min_entries: minimum number of entries (batch * pixels * channels) of a layer's inputs for the kernel to be
                used in training; in evaluation, twice as many, or 50 times as many with more than 64 channels.
            network: name of the network, or a pattern; "*" for every network of a run.
        """
        self.layers = layers
        self.min_entries = check_integer("min_entries", min_entries, minimum=0)
        self.network = network

    def declare(self) -> Declaration:
        return Declaration()

    def build(self, context: BuildContext) -> None:
        found = find_batch_norms(context.network.model, self.layers)
        reasons = {path: why_layer_stays(layer) for path, layer in found.items()}
        self._chosen = {path: layer for path, layer in found.items() if reasons[path] is None}
        never = {path: reason for path, reason in reasons.items() if reason is not None}
        self._left = {phase: dict(never) for phase in ("training", "evaluation")}
        self._fused: dict[str, set[str]] = {phase: set() for phase in self._left}

    def around_forward(self, context: StepContext) -> AbstractContextManager[None]:
        phase = "training" if context.training else "evaluation"
        return calls_replaced([(layer, partial(self._call, path, phase)) for path, layer in self._chosen.items()])

    def _call(self, path: str, phase: str, inputs: Any, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        layer = self._chosen[path]
        by_batch = bool(training and layer.trainable)  # Keras: a layer that is not trainable uses its moving statistics
        reason = why_call_stays(layer, inputs, mask, by_batch=by_batch, min_entries=self.min_entries)
        if reason is not None:
            self._left[phase][path] = reason
            return keras.layers.BatchNormalization.call(layer, inputs, training=training, mask=mask)
        self._fused[phase].add(path)
        return call_fused(layer, inputs, by_batch=by_batch)

    def summary(self) -> dict[str, Any]:
        """Return the layers with fused calls and those left to Keras, with reasons, in training and in evaluation."""
        return {
            phase: {"fused": [path for path in self._chosen if path in self._fused[phase]], "left_to_keras": left}
            for phase, left in self._left.items()
            if left or self._fused[phase]
        }


def find_batch_norms(model: keras.Model, patterns: str | Sequence[str]) -> dict[str, keras.layers.BatchNormalization]:
    """Return the batch norm layers that match, by path; "*" may match none."""

    def accept(layer: keras.Layer) -> bool:
        return isinstance(layer, keras.layers.BatchNormalization)

    if patterns == "*":
        return {path: layer for path, layer in layer_paths(model).items() if accept(layer)}
    return select_layers(model, patterns, accept=accept, kind="batch norm layer")


def call_fused(layer: keras.layers.BatchNormalization, inputs: tf.Tensor, *, by_batch: bool) -> tf.Tensor:
    """Return the outputs of `BatchNormalization.call` from the fused kernel; update moving statistics as it does."""
    scale = keras.ops.cast(layer.gamma, "float32") if layer.scale else tf.ones([inputs.shape[-1]])
    offset = keras.ops.cast(layer.beta, "float32") if layer.center else tf.zeros([inputs.shape[-1]])
    moving_mean = keras.ops.cast(layer.moving_mean, "float32")
    moving_variance = keras.ops.cast(layer.moving_variance, "float32")
    if not by_batch:
        scale *= tf.math.rsqrt(moving_variance + layer.epsilon)
        return fused_scale_and_shift(inputs, scale, offset - moving_mean * scale)
    outputs, mean, variance = fused_batch_norm(inputs, scale, offset, epsilon=layer.epsilon)
    layer.moving_mean.assign(moving_mean * layer.momentum + mean * (1.0 - layer.momentum))
    layer.moving_variance.assign(moving_variance * layer.momentum + variance * (1.0 - layer.momentum))
    return outputs


OWN_METHODS = ("call", "_moments")
EVALUATION_FACTOR = 2  # with given statistics, Keras makes fewer passes: the kernel is faster only on larger inputs
WIDE, WIDE_FACTOR = 64, 50  # with more channels, Keras's two ops are as fast until inputs exceed the caches


def has_own_methods(layer: keras.layers.BatchNormalization) -> bool:
    """Return whether a layer's class overrides how batch norm is computed."""
    return any(getattr(type(layer), name) is not getattr(keras.layers.BatchNormalization, name) for name in OWN_METHODS)


def why_layer_stays(layer: keras.layers.BatchNormalization) -> str | None:
    """Return why no call of a layer can be fused, or None."""
    if has_own_methods(layer) or "call" in vars(layer):
        return f"{type(layer).__name__} overrides the computation"
    if layer.renorm or layer.synchronized:
        return "renorm" if layer.renorm else "synchronized"
    return f"epsilon below {SMALLEST_EPSILON}" if layer.epsilon < SMALLEST_EPSILON else None


def why_call_stays(
    layer: keras.layers.BatchNormalization, inputs: Any, mask: Any, *, by_batch: bool, min_entries: int
) -> str | None:
    """Return why one call of a layer is not fused, or None."""
    if not tf.is_tensor(inputs):
        return f"inputs are a {type(inputs).__name__}"
    if mask is not None:
        return "a mask"
    rank = inputs.shape.rank
    if rank is None or rank < 2 or layer.axis not in (-1, rank - 1):
        return f"axis {layer.axis} is not the last"
    if inputs.dtype.name not in FUSED_DTYPES or inputs.dtype != layer.compute_dtype:
        return f"{inputs.dtype.name} inputs, computed in {layer.compute_dtype}"
    graph = tf.compat.v1.get_default_graph()
    if getattr(graph, "_gradient_override_map", None):
        return "gradients of op types are overridden"
    if _compiled_by_xla(graph):
        return "XLA, which fuses the ops of Keras itself"
    if not inputs.shape.is_fully_defined():
        return "its batch has no fixed size"
    factor = 1 if by_batch else EVALUATION_FACTOR if inputs.shape[-1] <= WIDE else WIDE_FACTOR
    entries, needed = math.prod(inputs.shape), factor * min_entries
    return f"{entries:,} entries, below {needed:,}" if entries < needed else None


def _compiled_by_xla(graph: tf.Graph) -> bool:
    """Return whether a graph is traced for a `tf.function(jit_compile=True)`, or inside one."""
    for each in with_outer_graphs(graph):
        context = each._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
    return False
