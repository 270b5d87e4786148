"""What hooks and objectives want to show, gathered when somebody looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from trainer.hook import Arrays, Hook
from trainer.input.data import Split
from trainer.objective import Objective
from trainer.step.evaluate import Evaluator
from trainer.step.observe import Observer


@dataclass(frozen=True)
class Evaluated:
    """Hold a split with what evaluates it.

    Attributes:
        split: its examples.
        evaluator: holds what the objectives collected over them.
    """

    split: Split
    evaluator: Evaluator

    def examples(self, positions: Sequence[int]) -> Arrays:
        """Return rows of the split as a batch of arrays.

        Args:
            positions: in the split.
        """
        rows = tf.constant(self.split.indices[np.asarray(positions, np.int64)])
        return {name: tensor.numpy() for name, tensor in self.split.source.gather(rows).items()}


@dataclass
class Pictures:
    """Make the pictures of a run, once for each evaluation.

    Attributes:
        hooks: all of them.
        objectives: all of them.
        observer: gives graph hooks what they observe.
        evaluated: the splits by name.
    """

    hooks: Sequence[Hook]
    objectives: Sequence[Objective]
    observer: Observer
    evaluated: Mapping[str, Evaluated]
    _latest: tuple[tuple[int, str], Arrays] | None = field(default=None, repr=False)

    def __call__(self, step: int, split: str) -> Arrays:
        """Return the pictures by name.

        Args:
            step: steps made so far.
            split: "validation" or "test", which was evaluated last.
        """
        if self._latest is None or self._latest[0] != (step, split):
            self._latest = ((step, split), self._make(step, split))
        return self._latest[1]

    def _make(self, step: int, split: str) -> Arrays:
        observed = self.observer.run(step)
        pictures: Arrays = {}
        for hook in self.hooks:
            pictures |= hook.pictures(observed.get(hook.name, {}))
        evaluated = self.evaluated[split]
        for objective in self.objectives:
            pictures |= objective.pictures(evaluated.evaluator.collected(objective.name), evaluated.examples)
        return pictures
