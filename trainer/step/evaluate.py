"""Evaluation: every example of a split exactly once, in one traced loop."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.objective import Batch
from trainer.step.forward import Forward
from trainer.step.metrics import example_weights
from trainer.step.trainer import Trainer


class Evaluator:
    """Trace and run the evaluation of one split.

    Attributes:
        names: of the values that a run returns.
    """

    def __init__(self, trainer: Trainer, batch: Callable[[tf.Tensor], Batch], count: int) -> None:
        """Trace the loop.

        Args:
            trainer: whose networks and objectives to evaluate.
            batch: returns batch i (int64 scalar) with "weights" [batch], 0 for padding.
            count: number of batches.
        """
        self.trainer = trainer
        self._batch = batch
        self._count = count
        self.names: list[str] = []
        self._run = tf.function(self._loop, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))

    def of(self, trainer: Trainer) -> Evaluator:
        """Return the evaluation of the same split with other networks, objectives or hooks.

        Args:
            trainer: that has them.
        """
        return Evaluator(trainer, self._batch, self._count)

    def run(self, step: int) -> dict[str, float]:
        """Return the averages over the split: "loss/<name>" of the objectives' own losses, and "metric/<name>".

        Args:
            step: steps made so far.
        """
        means = self._run(tf.constant(step, tf.int64)).numpy()
        return {name: float(mean) for name, mean in zip(self.names, means, strict=True)}

    def _loop(self, step: tf.Tensor) -> tf.Tensor:
        # Weights are read and transformed once, outside the loop over batches.
        forward = self.trainer.forward(step, self._batch(tf.constant(0, tf.int64)), objective="", training=False)

        def body(index: tf.Tensor, sums: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            batch = self._batch(index)
            size = tf.reduce_sum(example_weights(batch))
            values = self._values(forward, batch)
            self.names = list(values)
            return index + 1, sums + tf.stack(list(values.values())) * size, count + size

        shapes = [tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([])]
        first = [tf.constant(1, tf.int64), *body(tf.constant(0, tf.int64), tf.constant(0.0), tf.constant(0.0))[1:]]
        _, sums, count = tf.while_loop(lambda i, *_: i < self._count, body, first, shape_invariants=shapes)
        return sums / count

    def _values(self, forward: Forward, batch: Batch) -> dict[str, tf.Tensor]:
        values: dict[str, tf.Tensor] = {}
        for objective in self.trainer.objectives:
            prefix = f"{objective.name}/" if len(self.trainer.objectives) > 1 else ""
            losses, metrics = self.trainer.losses(objective, forward, batch)
            values |= {f"{prefix}loss/{name}": value for name, value in losses.items()}
            values |= {f"{prefix}metric/{name}": value for name, value in metrics.items()}
        return values
