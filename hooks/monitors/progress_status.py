"""What a progress display says: the run's position, speed, time left and metrics as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hooks.monitors.progress_time import TimeLeft
from trainer.run.results import (
    format_metric,
    format_seconds,
    format_share,
    format_value,
    is_metric,
    is_total_loss,
    short_name,
)

if TYPE_CHECKING:
    from trainer.run.control import Report, Run

SHOWN_METRICS = 2
WAITING = 0.05
"""From this share of the training time on, waiting for batches is shown."""


class ProgressStatus:
    """Keep the latest reports of a run, and put its position, speed and metrics into words."""

    def __init__(self, run: Run) -> None:
        """Begin at the run's present step.

        Args:
            run: the run; a resumed one begins at its step.
        """
        self.run = run
        self._reports: dict[str, Report] = {}
        self._time_left = TimeLeft(run)

    def take(self, report: Report | None) -> None:
        """Note the edge of a chunk, and a report when there is one; the latest of each split is shown."""
        self._time_left.take(evaluated=report is not None and report.split == "validation")
        if report is not None:
            self._reports[report.split] = report

    def position(self) -> str:
        """Return steps and epochs, such as "step 400/1200, epoch 10.0/30.0"."""
        return f"step {self.steps()}, {self.epochs()}"

    def steps(self) -> str:
        """Return steps made of how many, such as "400/1200"."""
        return f"{self.run.step}/{self.run.total_steps}"

    def epochs(self) -> str:
        """Return epochs made of how many, such as "epoch 10.0/30.0"."""
        return f"epoch {self.run.epoch:.1f}/{self.run.total_steps / self.run.steps_per_epoch:.1f}"

    def speed(self) -> str:
        """Return speed, waiting, queue and time left, such as "12,345 images/s, waiting 12 %, queue 8/8, 0:31 left"."""
        return ", ".join(filter(None, (self.rate(), self.waiting(), self.queue(), self.left())))

    def rate(self) -> str:
        """Return training examples per second, such as "12,345 images/s"; empty while it is unknown."""
        return f"{self.run.images_per_second:,.0f} images/s" if self.run.images_per_second else ""

    def waiting(self) -> str:
        """Return how much of the training time goes into waiting for batches, such as "waiting 12 %"; else empty."""
        share = self.run.waiting_share or 0.0
        return f"waiting {format_share(share)}" if share >= WAITING else ""

    def queue(self) -> str:
        """Return how many batches lay ready when the latest chunk ended, of how many that fit, such as "queue 8/8".

        Empty where there is no queue. One that stays empty holds the training up.
        """
        return "" if self.run.queue is None else "queue {}/{}".format(*self.run.queue)

    def left(self) -> str:
        """Return the time left, such as "0:31 left"; empty while it is unknown, and at the end."""
        seconds = self._time_left.seconds()
        return "" if seconds is None or self.run.step >= self.run.total_steps else f"{format_seconds(seconds)} left"

    def metrics(self) -> str:
        """Return the latest training metrics, the latest and the best validation metric; empty before a report."""
        return ", ".join(" ".join(group) for group in self.metric_groups())

    def metric_groups(self) -> list[list[str]]:
        """Return the same in groups of texts that belong together, such as ["train", "loss 0.05", "accuracy 0.97"]."""
        groups = []
        for split in ("train", "validation"):
            if split in self._reports and (texts := self._texts(split)):
                groups.append([split, *texts])
        best = self.run.best
        if best.value is not None:
            value = self._format("validation", best.monitor, best.value)
            groups.append([f"best {short_name(best.monitor)} {value}", f"at step {best.step}"])
        return groups

    def _texts(self, split: str) -> list[str]:
        values = self._reports[split].values
        measured = [name for name in values if is_metric(name)][:SHOWN_METRICS]
        losses = [name for name in values if is_total_loss(name)]
        monitor = [name for name in (self.run.best.monitor,) if is_metric(name)]
        shown = dict.fromkeys((*losses, *monitor, *measured))
        return [f"{short_name(name)} {self._format(split, name, values[name])}" for name in shown if name in values]

    def _format(self, split: str, name: str, value: float) -> str:
        if split not in self.run.held_out or not is_metric(name):
            return format_value(value)
        return format_metric(value, self.run.held_out[split].size)
