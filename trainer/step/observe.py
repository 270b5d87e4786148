"""Observation: what graph hooks want to see of a few examples, computed with the weights of now."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainer.hook import Arrays, GraphHook
from trainer.input.batches import EvaluationBatches
from trainer.input.data import Split
from trainer.objective import Batch
from trainer.step.python_errors import python_errors
from trainer.step.returned import checked
from trainer.step.stage import in_stage
from trainer.step.taking_part import takes_part
from trainer.step.trainer import Trainer


class Observer:
    """Run the graph hooks' `observe` on examples of a split, spread evenly over it.

    Nothing is traced before the first run, nor ever where no hook observes.
    """

    def __init__(self, trainer: Trainer, split: Split, *, batch_size: int, placement: str = "auto") -> None:
        """Choose the examples.

        Args:
            trainer: whose networks to run and whose hooks to ask.
            split: where the examples come from.
            batch_size: most examples at a time.
            placement: see `TrainingBatches`.
        """
        self._trainer = trainer
        self._limits = {h.name: min(h.observed_examples, split.size) for h in trainer.hooks if h.observed_examples}
        self._batches = {
            limit: EvaluationBatches(_spread(split, limit), batch_size=batch_size, placement=placement)
            for limit in set(self._limits.values())
        }
        self._functions: dict[int, tf.types.experimental.PolymorphicFunction] = {}

    def run(self, step: int) -> dict[str, Arrays]:
        """Return what hooks observe, by hook: arrays [examples, ...] by name.

        Args:
            step: steps made so far.
        """
        observed: dict[str, Arrays] = {}
        for limit, batches in self._batches.items():
            function = self._functions.setdefault(limit, self._function(limit))
            with python_errors():
                parts = [
                    {hook: {name: value.numpy() for name, value in values.items()} for hook, values in part.items()}
                    for part in (
                        function(tf.constant(step, tf.int64), tf.constant(index, tf.int64))
                        for index in range(batches.count)
                    )
                ]
            for hook, values in parts[0].items():
                observed[hook] = {name: np.concatenate([p[hook][name] for p in parts])[:limit] for name in values}
        return observed

    def _function(self, limit: int) -> tf.types.experimental.PolymorphicFunction:
        hooks = [hook for hook in self._trainer.hooks if self._limits.get(hook.name) == limit]

        def observe(step: tf.Tensor, index: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
            return self._observe(hooks, step, self._batches[limit].batch(index))

        return tf.function(observe, autograph=False)

    def _observe(self, hooks: list[GraphHook], step: tf.Tensor, batch: Batch) -> dict[str, dict[str, tf.Tensor]]:
        values: dict[str, dict[str, tf.Tensor]] = {}
        for objective in self._trainer.objectives:
            # A hook sees the first objective that it takes part in.
            part = [hook for hook in hooks if takes_part(hook, objective.name, objective.changes)]
            asked = [hook for hook in part if hook.name not in values]
            if asked:
                forward = self._trainer.forward(step, batch, objective=objective.name, training=False)
                self._trainer.losses(objective, forward, batch)
            for hook in asked:
                with in_stage(hook, "observe"):
                    found = hook.observe(forward.passes[hook.network].context)
                    values[hook.name] = dict(checked(hook, "observe", found, batch=batch))
        return values


def _spread(split: Split, limit: int) -> Split:
    """Return `limit` examples of a split, evenly spaced: folders of images come class by class."""
    rows = np.linspace(0, split.size - 1, limit).round().astype(np.int64)
    return Split(split.name, split.source, split.indices[rows])
