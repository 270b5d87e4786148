"""Batch norm on TensorFlow's fused kernel, in training and in evaluation; the model stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.batch_norm import call_fused, find_batch_norms, why_call_stays, why_layer_stays
from hookline.hooks.graphs import calls_replaced
from hookline.trainer.errors import check_integer
from hookline.trainer.hook import Declaration, GraphHook
from hookline.trainer.step.context import BuildContext, StepContext


class FusedBatchNorm(GraphHook):
    """Compute the `BatchNormalization` layers of an unmodified model with the kernel FusedBatchNormV3.

    Outputs, gradients and moving statistics are the same within rounding. On inputs below `min_entries`
    entries it would be slower, because it always divides its work among threads; with trainer.threads=1, set
    `min_entries=1000`.

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

    Cost: On large inputs a layer takes a third to a half of the time that it takes in Keras.

    Pitfalls:
        tests/hooks/test_fused_batch_norm.py: the kernel returns the unbiased variance; it is converted to the
            biased one, which Keras stores.
        tests/trainer/ops/test_batch_norm.py: derivatives up to third order are compared with float64.

    Reference: Ioffe and Szegedy 2015, "Batch Normalization", arXiv 1502.03167, algorithm 1.

    Example:
        python train.py recipe=attention hooks.fused_batch_norm.min_entries=1000
        python train.py recipe=baseline hooks.fused_batch_norm=null
    """

    def __init__(self, *, layers: str | Sequence[str] = "*", min_entries: int = 100_000, network: str = "*") -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of batch norm layers; "*" for all of them, even if there are none.
            min_entries: entries (batch times pixels times channels) of a layer's inputs from which on the kernel is
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
        """Return which layers had fused calls, and which had others and why, in training and in evaluation."""
        return {
            phase: {"fused": [path for path in self._chosen if path in self._fused[phase]], "left_to_keras": left}
            for phase, left in self._left.items()
            if left or self._fused[phase]
        }
