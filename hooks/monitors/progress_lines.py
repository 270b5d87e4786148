"""Plain progress lines for a pipe or a file: few, whole, without control characters."""

from __future__ import annotations

import time

from rich.console import Console

from hooks.monitors.progress_status import ProgressStatus

SLOW_EPOCH_SECONDS = 30.0


class ProgressLines:
    """Print a line for an epoch or for half a minute, whichever comes first, and never more than a bound."""

    def __init__(self, console: Console, status: ProgressStatus, lines: int) -> None:
        """Set up; prints nothing yet.

        Args:
            console: where to print.
            status: what to print.
            lines: the most lines between the first and the last one.
        """
        self._console = console
        self._status = status
        self._spacing = status.run.total_steps / lines
        self._printed_step = status.run.step
        self._printed_time = time.monotonic()

    def begin(self) -> None:
        """Print what is about to be trained."""
        run = self._status.run
        self._print(f"{run.recipe}: {self._status.position()}, batch {run.batch_size}, {run.directory}")

    def update(self, evaluated: bool) -> None:
        """Print a line when one is due: with the validation metrics where they come, soon without them otherwise.

        Args:
            evaluated: whether the status has just got a validation report.
        """
        run = self._status.run
        steps = run.step - self._printed_step
        slow = time.monotonic() - self._printed_time >= SLOW_EPOCH_SECONDS
        distance = self._spacing if slow else max(self._spacing, run.steps_per_epoch)
        if steps >= distance - 1e-6 and (evaluated or slow or steps >= 2 * distance):
            self._print_status()

    def end(self) -> None:
        """Print where the run ended, unless the latest line said so."""
        if self._printed_step != self._status.run.step:
            self._print_status()

    def _print_status(self) -> None:
        parts = (self._status.position(), self._status.speed(), self._status.metrics())
        self._print(", ".join(part for part in parts if part))
        self._printed_step = self._status.run.step
        self._printed_time = time.monotonic()

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
