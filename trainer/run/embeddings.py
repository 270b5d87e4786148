"""Embeddings that hooks and objectives give, gathered when somebody looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.embedding import Embedding
from trainer.hook import Hook
from trainer.objective import Objective
from trainer.run.pictures import Evaluated
from trainer.step.observe import Observer


@dataclass(frozen=True)
class Embeddings:
    """Gather the embeddings of a run.

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

    def __call__(self, step: int, split: str) -> dict[str, Embedding]:
        """Return the embeddings by name.

        Args:
            step: steps made so far.
            split: "validation" or "test", which was evaluated last.
        """
        observed = self.observer.run(step)
        found: dict[str, Embedding] = {}
        for hook in self.hooks:
            found |= hook.embeddings(observed.get(hook.name, {}))
        evaluated = self.evaluated[split]
        for objective in self.objectives:
            found |= objective.embeddings(evaluated.evaluator.collected(objective.name), evaluated.examples)
        return found
