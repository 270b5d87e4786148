"""The progress of a run on the screen."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from hookline.hooks.monitors.console import AUTO, PLAIN, QUIET, open_console
from hookline.hooks.options import check_choice, check_integer, check_number
from hookline.trainer.hook import HostHook
from hookline.trainer.run.results import (
    format_metric,
    format_seconds,
    format_share,
    format_value,
    is_metric,
    is_total_loss,
    short_name,
)

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report, Run


class TimeLeft:
    """Measure a run from the first edge of a chunk on; the time before went into set-up."""

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
        """Return how many batches were ready when the latest chunk ended, out of how many fit, such as "queue 8/8".

        Empty without a queue. A queue that stays empty slows training down.
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


SLOW_EPOCH_SECONDS = 30.0


class ProgressLines:
    """Print a line per epoch or half minute, whichever comes first, and never more than a limit."""

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


LEAST_BAR = 10
"""Narrowest bar, in cells: below it, texts beside the bar are left out instead."""
MOST_LINES = 8
INDENT = "  "


class ProgressBar:
    """Draw the bar in place; other output of the process appears above it."""

    def __init__(self, console: Console, status: ProgressStatus, every_seconds: float) -> None:
        """Set up; draws nothing yet.

        Args:
            console: a terminal.
            status: what to draw.
            every_seconds: time between two drawings.
        """
        self._console = console
        self._status = status
        self._width = 0
        self._drawn: list[int] = []  # cells of each line on the screen
        self._live = Live(
            get_renderable=self._draw,
            console=console,
            refresh_per_second=1 / every_seconds,
            vertical_overflow="crop",
            redirect_stderr=sys.stderr.isatty(),  # a file of errors stays one
        )

    def begin(self) -> None:
        """Start to draw, from a thread of its own."""
        self._live.start(refresh=True)

    def update(self, evaluated: bool) -> None:
        """Do nothing: the thread draws what the status holds."""

    def end(self) -> None:
        """Draw the last state and release the terminal."""
        self._live.stop()

    def _draw(self) -> _Drawing:
        width = self._console.width
        if width < self._width:
            # The terminal has wrapped the lines shown: this many must be erased.
            rows = sum(max(1, math.ceil(cells / width)) for cells in self._drawn)
            self._live._live_render._shape = (width, rows)
        drawing = draw(self._status, width - 1)  # a terminal that gets narrower would wrap a full line
        self._width, self._drawn = width, drawing.cells
        return drawing


class _Drawing:
    """Hold a bar with a text beside it, and lines below."""

    def __init__(self, bar: tuple[int, int], beside: str, below: Sequence[str]) -> None:
        self._bar, self._beside, self._below = bar, beside, below

    @property
    def cells(self) -> list[int]:
        """Return the width of each line."""
        bar = sum(self._bar)
        return [bar + bool(bar) + cell_len(self._beside), *map(cell_len, self._below)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        done, left = self._bar
        marks = "#-" if options.ascii_only else "━─"
        if done + left:
            yield Text.assemble((marks[0] * done, "green"), (marks[1] * left, "dim"), " ", no_wrap=True, end="")
        yield Segment(self._beside)
        for line in self._below:
            yield Segment.line()
            yield Text(line, style="dim", no_wrap=True, end="")


def draw(status: ProgressStatus, width: int) -> _Drawing:
    """Return what fits: the most important texts beside the bar, every metric below it, on several lines if need be.

    Args:
        status: what to draw.
        width: cells to draw in.
    """
    run = status.run
    beside = fit(
        [
            (f"step {status.steps()}", 2),
            (status.epochs(), 4),
            (status.rate(), 5),
            (status.waiting(), 3),
            (status.queue(), 6),
            (status.left(), 1),
        ],
        width - LEAST_BAR - 1,
    )
    room = width - cell_len(beside) - 1
    done = room * min(run.step, run.total_steps) // max(1, run.total_steps)
    return _Drawing(
        (done, room - done) if room >= LEAST_BAR else (0, 0),
        beside[:width],
        fold(status.metric_groups() or [[run.recipe]], width)[:MOST_LINES],
    )


def fit(texts: Sequence[tuple[str, int]], width: int) -> str:
    """Return texts joined by commas; those that matter least are left out until the rest fits, or one is left.

    Args:
        texts: in the order of reading, each with its rank: 1 matters most. Empty ones are left out.
        width: cells.
    """
    left = [(text, rank) for text, rank in texts if text]
    while len(left) > 1 and cell_len(", ".join(text for text, _ in left)) > width:
        left.remove(max(left, key=lambda each: each[1]))
    return ", ".join(text for text, _ in left)


def fold(groups: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return groups of texts on one line, or if that is too long, each on lines of its own.

    Args:
        groups: of texts, none of which is cut in two unless it is wider than a line.
        width: cells of a line.
    """
    one = ", ".join(" ".join(group) for group in groups)
    if cell_len(one) <= width:
        return [one]
    lines: list[str] = []
    for group in groups:
        line = ""
        for text in group:
            longer = f"{line} {text}" if line else text
            if line and cell_len(longer) > width:
                lines.append(line)
                longer = INDENT + text
            line = longer
        lines.append(line)
    return [line if cell_len(line) <= width else f"{line[: width - 1]}…" for line in lines]


MODES = (AUTO, "bar", PLAIN, QUIET)


class Progress(HostHook):
    """Show the progress of a run: steps, epoch, images per second, waiting, time left, latest and best metrics.

    On a terminal this is a bar. Elsewhere, and where CI or NO_COLOR is set, it is at most `lines` plain lines a run,
    without control characters. When the reader of standard output leaves, training continues. It keeps no state: a
    resumed run starts the display afresh.

    Group:
        monitor

    Cost:
        A few lines of text per chunk. Measured: 0.02 s for `recipe=baseline` into a file.

    Pitfalls:
        tests/hooks/monitors/test_progress.py: the time left of a resumed run counts from where it resumed; a pipe gets
            no control characters; the terminal is restored after an exception.

    Example:
        python train.py recipe=bnn hooks.progress.lines=10
    """

    priority = 10  # before the other hooks that print

    def __init__(self, *, mode: str = AUTO, every_seconds: float = 0.5, lines: int = 50) -> None:
        """Set up the display.

        Args:
            mode: "bar", "plain" for lines, "quiet" for nothing; "auto" decides by the output.
            every_seconds: time between two drawings of the bar; above 0.
            lines: the most plain lines a run prints between its first and its last one; at least 1.
        """
        self._mode = check_choice("mode", mode, MODES)
        self._every_seconds = check_number("every_seconds", every_seconds, minimum=0, above_minimum=True)
        self._lines = check_integer("lines", lines, minimum=1)
        self._display: ProgressBar | ProgressLines | None = None
        self._status: ProgressStatus | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return no state: a resumed run starts the display afresh."""
        return {}

    def on_fit_begin(self, run: Run) -> None:
        self._close()  # of an earlier fit that never ended
        if self._mode == QUIET:
            return
        console = open_console(self._mode)
        self._status = ProgressStatus(run)
        if console.is_terminal:
            self._display = ProgressBar(console, self._status, self._every_seconds)
        else:
            self._display = ProgressLines(console, self._status, self._lines)
        self._display.begin()

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        self._show(report)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        self._show(report)

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        self._close()

    def _show(self, report: Report | None) -> None:
        if self._status is None or self._display is None:
            return
        self._status.take(report)
        self._display.update(evaluated=report is not None and report.split == "validation")

    def _close(self) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.end()
