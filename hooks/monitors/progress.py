"""Progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hooks.monitors.console import AUTO, PLAIN, QUIET, open_console
from hooks.monitors.progress_bar import ProgressBar
from hooks.monitors.progress_lines import ProgressLines
from hooks.monitors.progress_status import ProgressStatus
from hooks.options import check_choice, check_integer, check_number
from trainer.hook import HostHook

if TYPE_CHECKING:
    from trainer.run.control import Report, Run

MODES = (AUTO, "bar", PLAIN, QUIET)


class Progress(HostHook):
    """Show how far a run is: steps, epoch, images per second, waiting, time left, latest and best metrics.

    On a terminal this is a bar. Elsewhere, and where CI or NO_COLOR is set, it is at most `lines` plain lines a run,
    without control characters. When the reader of standard output leaves, training goes on. It keeps no
    state: what is shown begins anew.

    Group:
        monitor

    Cost:
        A few lines of text an edge of a chunk. Measured: 0.02 s for `recipe=baseline` in a file.

    Pitfalls:
        tests/unit/monitors/test_progress.py: the time left of a resumed run counts from where it went on; a pipe gets
            no control characters; the terminal is given back after an exception.

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
        """Return no state: what is shown begins anew."""
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

    def on_exception(self, run: Run, error: BaseException) -> None:
        self._close()

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
