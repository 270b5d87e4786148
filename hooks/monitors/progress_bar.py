"""The progress bar of a terminal: one line of bar, one line of metrics."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from hooks.monitors.progress_status import ProgressStatus


class ProgressBar:
    """Draw the bar in place; other output of the process appears above it."""

    def __init__(self, console: Console, status: ProgressStatus, every_seconds: float) -> None:
        """Set up; draws nothing yet.

        Args:
            console: a terminal.
            status: what to draw.
            every_seconds: time between two drawings.
        """
        self._status = status
        self._live = Live(
            get_renderable=self._draw, console=console, refresh_per_second=1 / every_seconds, vertical_overflow="crop"
        )

    def begin(self) -> None:
        """Start to draw, from a thread of its own."""
        self._live.start(refresh=True)

    def update(self, evaluated: bool) -> None:
        """Do nothing: the thread draws what the status holds."""

    def end(self) -> None:
        """Draw the last state and give the terminal back."""
        self._live.stop()

    def _draw(self) -> Group:
        run = self._status.run
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        bar = Bar(total=max(1, run.total_steps), completed=min(run.step, run.total_steps))
        row.add_row(bar, Text(", ".join(filter(None, (self._status.position(), self._status.speed())))))
        return Group(row, Text(self._status.metrics() or run.recipe, style="dim", no_wrap=True, overflow="ellipsis"))
