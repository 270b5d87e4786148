"""What hooks and objectives show of a run, gathered when somebody looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.embedding import Embedding
from trainer.hook import Arrays, GraphHook, Hook
from trainer.input.batches import TrainingBatches
from trainer.input.data import Split
from trainer.network import Network
from trainer.objective import Objective
from trainer.run.distributions import weight_distributions
from trainer.run.first_filters import first_filters, first_kernel
from trainer.run.shipped import ShippedWeights
from trainer.run.training_sheet import training_sheet
from trainer.step.evaluate import Evaluator
from trainer.step.observe import Observer
from trainer.step.returned import checked
from trainer.step.stage import in_stage

TRAINING_EXAMPLES = "input/training_examples"


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
class Views:
    """Gather the pictures and the embeddings of a run; pictures are made once for each evaluation.

    Attributes:
        hooks: all of them.
        objectives: all of them.
        observer: gives graph hooks what they observe.
        evaluated: the splits by name.
        training: the batches of the training split; None to show none of them.
        networks: by name; without any, nothing of their weights is shown.
        shipped: what evaluation uses in place of their weights.
    """

    hooks: Sequence[Hook]
    objectives: Sequence[Objective]
    observer: Observer
    evaluated: Mapping[str, Evaluated]
    training: TrainingBatches | None = None
    networks: Mapping[str, Network] = field(default_factory=dict)
    shipped: ShippedWeights | None = None
    _latest: tuple[tuple[int, str], Arrays] | None = field(default=None, repr=False)
    _first: Arrays | None = field(default=None, repr=False)

    def first_pictures(self) -> Arrays:
        """Return what can be shown before the first step, by name: training examples as the network sees them."""
        if self._first is None:
            sheet = None if self.training is None else training_sheet(self.training)
            self._first = {} if sheet is None else {TRAINING_EXAMPLES: sheet}
        return self._first

    def pictures(self, step: int, split: str) -> Arrays:
        """Return the pictures by name.

        Args:
            step: steps made so far.
            split: "validation" or "test", which was evaluated last.
        """
        if self._latest is None or self._latest[0] != (step, split):
            self._latest = ((step, split), self._filters(step) | self._gather("pictures", step, split))
        return self._latest[1]

    def distributions(self, step: int) -> Arrays:
        """Return arrays whose distribution is worth a look, by name: of the weights, and what hooks give.

        Args:
            step: steps made so far.
        """
        used = {} if self.shipped is None else self.shipped(step)
        found = weight_distributions(self.networks if used else {}, used)
        for hook in self.hooks:
            scope = hook.scope if isinstance(hook, GraphHook) else ""
            with in_stage(hook, "distributions", step):
                given = checked(hook, "distributions", hook.distributions())
            found |= {scope + name: values for name, values in given.items()}
        return found

    def _filters(self, step: int) -> Arrays:
        """Return pictures of the first layer of each network that sees images, by name."""
        seen = [name for name, network in self.networks.items() if first_kernel(network) is not None]
        used = self.shipped(step) if self.shipped is not None and seen else {}  # reads all weights
        found: Arrays = {}
        for name in seen if used else ():
            scope = f"{name}/" if len(self.networks) > 1 else ""
            pictures = first_filters(self.networks[name], used[name])
            found |= {scope + title: picture for title, picture in pictures.items()}
        return found

    def embeddings(self, step: int, split: str) -> dict[str, Embedding]:
        """Return the embeddings by name.

        Args:
            step: steps made so far.
            split: "validation" or "test", which was evaluated last.
        """
        return self._gather("embeddings", step, split)

    def _gather(self, kind: str, step: int, split: str) -> dict[str, Any]:
        """Return what the method `kind` of all hooks and objectives gives, by name."""
        observed = self.observer.run(step)
        found: dict[str, Any] = {}
        for hook in self.hooks:
            scope = hook.scope if isinstance(hook, GraphHook) else ""
            with in_stage(hook, kind, step):
                shown = checked(hook, kind, getattr(hook, kind)(observed.get(hook.name, {})))
            found |= {scope + name: value for name, value in shown.items()}
        evaluated = self.evaluated[split]
        for objective in self.objectives:
            found |= getattr(objective, kind)(evaluated.evaluator.collected(objective.name), evaluated.examples)
        return found
