"""What a progress display says: the run's position, speed, time left and metrics as text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trainer.run.results import format_seconds, format_value, is_metric, is_total_loss, short_name

if TYPE_CHECKING:
    from trainer.run.control import Report, Run

SHOWN_METRICS = 2


class ProgressStatus:
    """Keep the latest reports of a run, and put its position, speed and metrics into words."""

    def __init__(self, run: Run) -> None:
        """Begin at the run's present step.

        Args:
            run: the run; a resumed one begins at its step.
        """
        self.run = run
        self._reports: dict[str, Report] = {}
        self._first_edge: tuple[int, float] | None = None

    def take(self, report: Report | None) -> None:
        """Note the edge of a chunk, and a report when there is one; the latest of each split is shown."""
        if self._first_edge is None:  # what came before it paid for set-up and says nothing about speed
            self._first_edge = (self.run.step, time.monotonic())
        if report is not None:
            self._reports[report.split] = report

    def seconds_left(self) -> float | None:
        """Return the expected wall time to the end, evaluation and saving included; None while it is unknown."""
        if self._first_edge is None or self.run.step <= self._first_edge[0]:
            return None
        step, moment = self._first_edge
        return (time.monotonic() - moment) / (self.run.step - step) * max(0, self.run.total_steps - self.run.step)

    def position(self) -> str:
        """Return steps and epochs, such as "step 400/1200, epoch 10.0/30.0"."""
        run = self.run
        epochs = run.total_steps / run.steps_per_epoch
        return f"step {run.step}/{run.total_steps}, epoch {run.epoch:.1f}/{epochs:.1f}"

    def speed(self) -> str:
        """Return speed, fill of the queue and time left, such as "12,345 images/s, queue 8/8, 0:31 left".

        What is unknown is left out, and the queue where there is none: it shows how many batches lay ready when the
        latest chunk ended, of how many that fit. A queue that stays empty holds the training up.
        """
        parts = [f"{self.run.images_per_second:,.0f} images/s"] if self.run.images_per_second else []
        if self.run.queue is not None:
            parts.append("queue {}/{}".format(*self.run.queue))
        left = self.seconds_left()
        if left is not None and self.run.step < self.run.total_steps:
            parts.append(f"{format_seconds(left)} left")
        return ", ".join(parts)

    def metrics(self) -> str:
        """Return the latest training metrics, the latest and the best validation metric; empty before a report."""
        parts = []
        for split in ("train", "validation"):
            if split in self._reports:
                values = self._reports[split].values
                measured = [name for name in values if is_metric(name)][:SHOWN_METRICS]
                losses = [name for name in values if is_total_loss(name)]
                monitor = [name for name in (self.run.best.monitor,) if is_metric(name)]
                shown = dict.fromkeys((*losses, *monitor, *measured))
                texts = [f"{short_name(name)} {format_value(values[name])}" for name in shown if name in values]
                parts.append(f"{split} {' '.join(texts)}" if texts else "")
        if self.run.best.value is not None:
            best = self.run.best
            parts.append(f"best {short_name(best.monitor)} {format_value(best.value)} at step {best.step}")
        return ", ".join(part for part in parts if part)
