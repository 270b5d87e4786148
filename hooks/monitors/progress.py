"""The progress of a run on the screen."""

from __future__ import annotations

import importlib
import io
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hookline.hooks.monitors.console import AUTO, PLAIN, QUIET, open_console
from hookline.trainer.errors import check_choice, check_integer, check_number, printable
from hookline.trainer.hook import HostHook, Report, Run
from hookline.trainer.run import results

SHOWN_METRICS = 2
WAITING = 0.05  # the wait for batches is shown from this share of the training time on


class Status:
    """Keep the latest reports of a run, and format its position, speed, time left and metrics."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._reports: dict[str, Report] = {}
        self._begun: tuple[int, float, float] | None = None  # at the first chunk boundary: earlier time is setup
        self._evaluations = 0

    def take(self, report: Report | None) -> None:
        """Record a chunk boundary and its report, if any; the latest report of each split is shown."""
        if self._begun is None:
            self._begun = (self.run.step, time.monotonic(), self.run.times.train_seconds)
        if report is not None:
            self._evaluations += report.split == "validation"
            self._reports[report.split] = report

    def seconds_left(self) -> float | None:
        """Return the wall time left, estimated from the steps and evaluations of this process; None while unknown."""
        run = self.run
        if self._begun is None or run.step <= self._begun[0]:
            return None
        steps = run.step - self._begun[0]
        steps_left = max(0, run.total_steps - run.step)
        wall = time.monotonic() - self._begun[1]
        if not self._evaluations:
            return wall / steps * steps_left
        trained = min(wall, run.times.train_seconds - self._begun[2])
        every = run.config.get("trainer", {}).get("evaluate_every_epochs", 1) * run.steps_per_epoch
        evaluations_left = math.ceil(steps_left / every - 1e-6)
        return trained / steps * steps_left + (wall - trained) / self._evaluations * evaluations_left

    def position(self) -> str:
        """Return steps and epochs, such as "step 400/1200, epoch 10.0/30.0"."""
        run = self.run
        epoch, epochs = run.step / run.steps_per_epoch, run.total_steps / run.steps_per_epoch
        return f"step {run.step}/{run.total_steps}, epoch {epoch:.1f}/{epochs:.1f}"

    def speed(self) -> str:
        """Return the speed as far as it is known, such as "12,345 examples/s, waiting for data 12 %, 0:31 left"."""
        run, seconds = self.run, self.seconds_left()
        texts = [f"{run.images_per_second:,.0f} examples/s"] if run.images_per_second else []
        if (waiting := run.times.waiting_share or 0.0) >= WAITING:
            texts.append(f"waiting for data {results.format_share(waiting)}")
        if seconds is not None and run.step < run.total_steps:
            texts.append(f"{results.format_seconds(seconds)} left")
        return ", ".join(texts)

    def metrics(self) -> str:
        """Return the latest training and validation metrics, and the best value; empty before the first report."""
        shown = [(split, self._of(split)) for split in ("train", "validation") if split in self._reports]
        groups = [f"{split} {texts}" for split, texts in shown if texts]
        best = self.run.best
        if best.value is not None:
            value = self._format("validation", best.monitor, best.value)
            groups.append(f"best {results.short_name(best.monitor)} {value} at step {best.step}")
        return ", ".join(groups)

    def _of(self, split: str) -> str:
        values, monitor = self._reports[split].values, self.run.best.monitor
        losses = [name for name in values if results.is_total_loss(name)]
        metrics = [name for name in values if results.is_metric(name)]
        monitored = [monitor] if monitor in metrics else []
        names = dict.fromkeys((*losses, *monitored, *metrics[:SHOWN_METRICS]))
        texts = {name: f"{results.short_name(name)} {self._format(split, name, values[name])}" for name in names}
        if split == "train":
            texts |= {name: f"{texts[name]}{loss_parts(values, name)}" for name in losses}
        return " ".join(texts.values())

    def _format(self, split: str, name: str, value: float) -> str:
        if split not in self.run.held_out or not results.is_metric(name):
            return results.format_value(value)
        return results.format_metric(value, self.run.held_out[split].split.size)


def loss_parts(values: Mapping[str, float], total: str) -> str:
    """Return the terms of a total loss, such as " (center 0.0100 cross_entropy 0.2000)"; empty if there is only one."""
    start = total.removesuffix("total")
    terms = {name: value for name, value in values.items() if name.startswith(start) and name != total}
    texts = [f"{name.removeprefix(start)} {results.format_value(value)}" for name, value in terms.items()]
    return f" ({' '.join(texts)})" if len(texts) > 1 else ""


SLOW_EPOCH_SECONDS = 30.0
CELL_WIDTH = 100


class Lines:
    """Print a line per epoch or half minute, whichever comes first, at most `most` between the first and the last."""

    def __init__(self, console: Console, status: Status, most: int) -> None:
        self._console, self._status, run = console, status, status.run
        self._spacing = run.total_steps / most
        place = f", {run.directory}" if run.directory.exists() else ""
        self._print(f"{run.recipe}: {status.position()}, batch {run.training.batch_size}{place}")

    def update(self, report: Report | None) -> None:
        """Print a line if one is due, preferably at an evaluation on the validation split."""
        run = self._status.run
        steps = run.step - self._printed_step
        slow = time.monotonic() - self._printed_time >= SLOW_EPOCH_SECONDS
        evaluated = report is not None and report.split == "validation"
        distance = self._spacing if slow else max(self._spacing, run.steps_per_epoch)
        if steps >= distance - 1e-6 and (evaluated or slow or steps >= 2 * distance):
            self._print_status()

    def stop(self) -> None:
        if self._printed_step != self._status.run.step:
            self._print_status()

    def _print_status(self) -> None:
        parts = (self._status.position(), self._status.speed(), self._status.metrics())
        self._print(", ".join(filter(None, parts)))

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
        self._printed_step, self._printed_time = self._status.run.step, time.monotonic()


class Cell:
    """Draw the bar in the output of a notebook cell; each drawing replaces the previous one."""

    def __init__(self, status: Status, every_seconds: float) -> None:
        self._status, self._every_seconds = status, every_seconds
        display = importlib.import_module("IPython.display").display
        self._handle = display(self._drawn(), raw=True, display_id=True)

    def update(self, report: Report | None) -> None:
        if time.monotonic() - self._drawn_at >= self._every_seconds:
            self.stop()

    def stop(self) -> None:
        self._handle.update(self._drawn(), raw=True)

    def _drawn(self) -> dict[str, str]:
        self._drawn_at = time.monotonic()
        console = Console(file=io.StringIO(), width=CELL_WIDTH, color_system=None, force_jupyter=False)
        with console.capture() as captured:
            console.print(draw(self._status, console.width))
        return {"text/plain": captured.get()}


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; IPython in a terminal does not count."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


BAR = 24  # maximum width of the bar, in cells


def draw(status: Status, width: int) -> Group:
    """Return a bar with position and speed beside it, and the metrics below; texts that are too long wrap."""
    run, table = status.run, Table.grid(padding=(0, 1))
    text = ", ".join(filter(None, (status.position(), status.speed())))
    cells = min(BAR, width // 4, max(width - len(text) - 1, width // 10))
    bar = ProgressBar(max(1, run.total_steps), run.step, width=cells, finished_style="bar.complete")
    table.add_row(bar, Text(text))
    return Group(table, Text(printable(status.metrics() or run.recipe), style="dim"))


class Progress(HostHook):
    """Show the progress of a run: steps, epoch, examples per second, wait for data, time left, latest and best metrics.

    This is a bar in a notebook, and on a terminal unless CI, NO_COLOR or TERM=dumb is set. Elsewhere it is one plain
    line and at most `lines` more, without control characters. If the reader of standard output exits, training
    continues.

    Group: monitor

    Cost: A few lines of text per chunk. Measured: 0.02 s for `recipe=baseline` into a file.

    Pitfalls:
        tests/hooks/monitors/test_progress.py: a resumed run estimates its time left from the steps since it resumed; a
            pipe gets no control characters.

    Example:
        python train.py recipe=bnn hooks.progress.lines=10
    """

    priority = 10  # before the other hooks that print

    def __init__(self, *, mode: str = AUTO, every_seconds: float = 0.5, lines: int = 50) -> None:
        """Set how to display.

        Args:
            mode: "bar", "plain" for lines, "quiet" for nothing; "auto" decides by the output.
            every_seconds: seconds between two updates of the bar; above 0.
            lines: maximum number of plain lines after the first one; at least 1.
        """
        self._mode = check_choice("mode", mode, (AUTO, "bar", PLAIN, QUIET))
        self._every_seconds = check_number("every_seconds", every_seconds, minimum=0, above_minimum=True)
        self._lines = check_integer("lines", lines, minimum=1)
        self._status: Status | None = None
        self._display: Live | Lines | Cell | None = None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def on_fit_begin(self, run: Run) -> None:
        self._close()  # the display of an earlier fit that never ended
        if self._mode == QUIET:
            return
        console, status = open_console(self._mode), Status(run)
        self._status = status
        for line in () if run.from_checkpoint else run.journal.started_from:
            console.print(line, soft_wrap=True)
        if self._mode in (AUTO, "bar") and in_notebook():
            self._display = Cell(status, self._every_seconds)
        elif console.is_terminal:
            self._display = Live(
                get_renderable=lambda: draw(status, console.width),  # called by a separate thread
                console=console,
                refresh_per_second=1 / self._every_seconds,
                vertical_overflow="crop",
                redirect_stderr=sys.stderr.isatty(),  # not if it goes to a file
            )
            self._display.start(refresh=True)
        else:
            self._display = Lines(console, status, self._lines)

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        if self._status is not None:
            self._status.take(report)
        if isinstance(self._display, Lines | Cell):
            self._display.update(report)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        self.on_chunk_end(run, report)

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        self._close()

    def _close(self) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.stop()
