"""What a traced step returns: sums for the averages, vetoes, and whether anything was held back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from hookline.trainer.hook import Gradients
from hookline.trainer.objective import Batch, Objective
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.forward import Forward
from hookline.trainer.step.metrics import Computed, SumAndCount


@dataclass
class StepResult:
    """Hold what one traced step returns, or one run of an objective.

    Attributes:
        sums: metric name to (sum, count).
        vetoes: veto name to bool scalar; True held the step back.
        held_back: bool scalar, whether a veto or an overflow held something of it back; None if nothing can.
        overflow: bool scalar, whether gradients overflowed for the scale of the loss; None without one.
    """

    sums: dict[str, SumAndCount] = field(default_factory=dict)
    vetoes: dict[str, tf.Tensor] = field(default_factory=dict)
    held_back: tf.Tensor | None = None
    overflow: tf.Tensor | None = None

    def add(self, run: StepResult, prefix: str) -> None:
        """Add one more run of an objective: metrics become averages over its runs."""
        for name, (total, count) in run.sums.items():
            before = self.sums.get(prefix + name, (0.0, 0.0))
            self.sums[prefix + name] = (before[0] + total, before[1] + count)
        for name, veto in run.vetoes.items():
            known = self.vetoes.get(prefix + name)
            self.vetoes[prefix + name] = veto if known is None else tf.logical_or(known, veto)
        self.held_back = run.held_back
        if run.overflow is not None:
            self.overflow = run.overflow if self.overflow is None else tf.logical_or(self.overflow, run.overflow)


@dataclass
class HalfStep:
    """Hold one run of an objective between its gradients and what they change.

    Attributes:
        contexts: of the networks that may change, by name; `gradients` of each are what the optimizer gets.
        begun: the ops of `Objective.begin`.
        norms: of the gradients on their way, by name; `sampled` says whether they count in this step.
        held_back: whether the step was held back before; None where nothing could.
        overflow: whether gradients overflowed for the scale of the loss; None without one.
    """

    objective: Objective
    update: int
    batch: Batch
    forward: Forward
    computed: Computed
    contexts: dict[str, StepContext]
    begun: list[tf.Operation]
    norms: Mapping[str, tf.Tensor]
    sampled: tf.Tensor
    held_back: tf.Tensor | None
    overflow: tf.Tensor | None

    @property
    def gradients(self) -> dict[str, Gradients]:
        """Return the gradients that the optimizers get, by network and by variable; change the inner dicts at will."""
        return {name: context.gradients for name, context in self.contexts.items()}
