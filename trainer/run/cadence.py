"""When the traced loop must come up: the edges of its chunks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainer.hook import HostHook
from trainer.step.returned import checked
from trainer.step.stage import in_stage

CHUNK_SECONDS = 0.5
"""How long a chunk should last at most, so that progress shows and Ctrl-C is heard."""


@dataclass
class Cadence:
    """Choose the steps at which a run reports, evaluates and comes up.

    Attributes:
        total_steps: where the run ends.
        steps_per_epoch: steps an epoch, perhaps a fraction.
        evaluate_every_epochs: epochs between evaluations.
        report_every_steps: steps between reports; None for once an epoch.
    """

    total_steps: int
    steps_per_epoch: float
    evaluate_every_epochs: int
    report_every_steps: int | None

    def next_evaluation(self, step: int) -> int:
        """Return the first evaluation after `step`: the end of an epoch that is due, or the end of the run."""
        return self._next_epoch_end(step, self.evaluate_every_epochs)

    def next_report(self, step: int) -> int:
        """Return the first report after `step`."""
        if self.report_every_steps is None:
            return self._next_epoch_end(step, 1)
        return min(self.total_steps, (step // self.report_every_steps + 1) * self.report_every_steps)

    def next_edge(self, step: int, hooks: Iterable[HostHook], seconds_per_step: float | None) -> int:
        """Return the step at which the next chunk ends: the nearest wish, or what fits into half a second.

        Args:
            step: steps made.
            hooks: whose `next_step` counts.
            seconds_per_step: as measured; None before the first chunk, which is a single step then.
        """
        wishes = [wish for hook in hooks if (wish := _wish(hook, step)) is not None and wish > step]
        longest = 1 if seconds_per_step is None else max(1, int(CHUNK_SECONDS / max(seconds_per_step, 1e-6)))
        return min([self.next_evaluation(step), self.next_report(step), step + longest, *wishes])

    def _next_epoch_end(self, step: int, every: int) -> int:
        count = math.floor(step / (every * self.steps_per_epoch)) + 1
        end = math.ceil(count * every * self.steps_per_epoch)
        if end <= step:  # rounding put the end of this epoch at or before the step
            end = math.ceil((count + 1) * every * self.steps_per_epoch)
        return min(self.total_steps, end)


def _wish(hook: HostHook, step: int) -> int | None:
    with in_stage(hook, "next_step", step):
        return checked(hook, "next_step", hook.next_step(step))
