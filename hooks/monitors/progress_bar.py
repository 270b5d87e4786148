"""The progress bar of a terminal: a line of bar, and the metrics below it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from hooks.monitors.progress_status import ProgressStatus

LEAST_BAR = 10
"""Cells of the bar below which texts beside it are left out instead."""
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
        """Draw the last state and give the terminal back."""
        self._live.stop()

    def _draw(self) -> _Drawing:
        width = self._console.width
        if width < self._width:
            # The terminal has folded what is there: so many lines are to be erased.
            rows = sum(max(1, math.ceil(cells / width)) for cells in self._drawn)
            self._live._live_render._shape = (width, rows)
        drawing = draw(self._status, width - 1)  # a full line would be folded by a terminal that gets narrower
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
    """Return what fits: beside the bar the texts that matter most, below it every metric, on more lines if need be.

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
    """Return groups of texts on one line, or where that is too long each on lines of its own.

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
