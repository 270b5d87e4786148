"""Layers computed as the evaluation of a run computes them, on values of our own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import tensorflow as tf

from trainer.export.node import Call
from trainer.step.stage import in_stage
from trainer.step.trainer import Trainer


class EvaluatedLayers:
    """Call layers inside the contexts that hooks put around every forward pass, with tensors of the evaluation's size.

    A hook may have a layer computed otherwise, for large tensors alone perhaps; what it computes differs by rounding.
    """

    def __init__(self, trainer: Trainer, network: str, *, batch_size: int, step: int) -> None:
        """Take a run.

        Args:
            trainer: with its hooks built.
            network: name of the network that the layers belong to.
            batch_size: of its evaluations.
            step: steps made.
        """
        self.trainer = trainer
        self.network = network
        self.batch_size = batch_size
        self.step = step

    def __call__(self, calls: Sequence[Call], shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
        """Return what computes layers, one after another: float32 [count, channels] to the same.

        Args:
            calls: layers of the network; each treats every channel apart, and returns the shape that it is given.
            shape: of what the first layer takes for one example, [..., channels].
        """
        full = (self.batch_size, *shape)
        rows = math.prod(full[:-1])
        traced = tf.function(lambda tensor: self._compute(calls, tensor), autograph=False)
        concrete = traced.get_concrete_function(tf.TensorSpec(full, tf.float32))

        def compute(values: np.ndarray) -> np.ndarray:
            found = []
            for start in range(0, len(values), rows):
                part = values[start : start + rows]
                filled = np.concatenate([part, np.repeat(part[-1:], rows - len(part), axis=0)])
                results = concrete(tf.constant(filled.reshape(full), tf.float32)).numpy()
                found.append(results.reshape(rows, -1)[: len(part)])
            return np.concatenate(found)

        return compute

    def _compute(self, calls: Sequence[Call], tensor: tf.Tensor) -> tf.Tensor:
        passes = self.trainer.forward(tf.constant(self.step, tf.int64), {}, objective="", training=False).passes
        current = passes[self.network]
        with ExitStack() as stack:
            for hook in current.hooks:
                with in_stage(hook, "around_forward"):
                    stack.enter_context(hook.around_forward(current.context))
            for call in calls:
                tensor = call(tensor)
        return tensor
