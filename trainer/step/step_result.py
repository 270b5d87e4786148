"""What a traced step returns: sums for the averages, vetoes, and whether anything was held back."""

from __future__ import annotations

from dataclasses import dataclass, field

import tensorflow as tf

from hookline.trainer.step.metrics import SumAndCount


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
