"""How much longer a run takes: training by the step, evaluation and saving by the evaluation."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.run.control import Run


class TimeLeft:
    """Measure a run from the first edge of a chunk on; what came before paid for set-up and says nothing."""

    def __init__(self, run: Run) -> None:
        """Begin at the run's present step.

        Args:
            run: of which only the steps of this process count: a resumed one may be on another machine.
        """
        self._run = run
        self._begun: tuple[int, float, float] | None = None
        self._evaluations = 0

    def take(self, *, evaluated: bool) -> None:
        """Note the edge of a chunk or the end of an evaluation.

        Args:
            evaluated: whether the validation split has just been evaluated.
        """
        if self._begun is None:
            self._begun = (self._run.step, time.monotonic(), self._run.train_seconds)
        self._evaluations += evaluated

    def seconds(self) -> float | None:
        """Return the expected wall time to the last step, evaluation and saving included; None while it is unknown.

        Until the first evaluation is over, its cost is unknown and left out.
        """
        if self._begun is None or self._run.step <= self._begun[0]:
            return None
        steps = self._run.step - self._begun[0]
        steps_left = max(0, self._run.total_steps - self._run.step)
        wall = time.monotonic() - self._begun[1]
        if not self._evaluations:
            return wall / steps * steps_left
        trained = min(wall, self._run.train_seconds - self._begun[2])
        return trained / steps * steps_left + (wall - trained) / self._evaluations * self._evaluations_left(steps_left)

    def _evaluations_left(self, steps_left: int) -> int:
        every = self._run.config.get("trainer", {}).get("evaluate_every_epochs", 1) * self._run.steps_per_epoch
        return math.ceil(steps_left / every - 1e-6)
