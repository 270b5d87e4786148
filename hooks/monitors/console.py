"""The console, and files of monitors."""

from __future__ import annotations

import io
import math
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from hookline.hooks.advice.monitor import loss_monitor
from hookline.trainer.errors import WriteError, printable
from hookline.trainer.files import make_folder, write_whole
from hookline.trainer.run.results import is_share_of, short_name

WIDTH_WITHOUT_TERMINAL = 120
AUTO, PLAIN, QUIET = "auto", "plain", "quiet"
"""Modes of printing: as the output allows; without control characters; not at all."""


class LastingStream(io.TextIOBase):
    """Pass text on to a stream; when the stream breaks, drop the text and continue.

    A reader that leaves early (`| head`, a closed terminal) must not end a training run. The broken descriptor is
    then pointed at the null device, so that no later print and no flush at exit fails either.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Wrap a stream.

        Args:
            stream: such as `sys.stdout`; None (a process without output) drops everything.
        """
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property over the base's attribute
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._open() and self._stream is not None and self._stream.isatty()

    def write(self, text: str) -> int:
        """Write text; what the stream's encoding lacks becomes a question mark."""
        if self._stream is not None and self._open():
            try:
                self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            except OSError:
                self._let_go()
        return len(text)

    def flush(self) -> None:
        if self._stream is not None and self._open():
            try:
                self._stream.flush()
            except OSError:
                self._let_go()

    def _open(self) -> bool:
        return self._stream is not None and not self._stream.closed

    def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        with suppress(OSError, ValueError):  # a stream without a descriptor
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, stream.fileno() if stream else null_device)
            os.close(null_device)


class SteadyConsole(Console):
    """Never hide the cursor: a process that is killed could not show it again. Print texts as they can be shown."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text that is safe to show: names in it may come from strangers."""
        return super().render_str(printable(text, keep="\n\t"), **options)

    def show_cursor(self, show: bool = True) -> bool:
        """Do nothing."""
        del show
        return False


def is_terminal(stream: io.TextIOBase) -> bool:
    """Return whether the stream interprets control sequences and is a live display.

    A pipe, a file and TERM=dumb do not show them; CI keeps them in its log; NO_COLOR asks for plain text.

    Args:
        stream: where the text goes.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        return False
    return stream.isatty() and os.environ.get("TERM", "").lower() not in {"", "dumb", "unknown"}


def open_console(mode: str = AUTO) -> Console:
    """Return a console on the present standard output; it never raises because the reader has left.

    Args:
        mode: "plain" for text without control characters, "quiet" for none, "auto" to detect, anything else for a
            terminal's.
    """
    stream = LastingStream(None if mode == QUIET else sys.stdout)
    terminal = is_terminal(stream) if mode == AUTO else mode not in (PLAIN, QUIET)
    return SteadyConsole(
        file=stream,  # type: ignore[arg-type]  # rich asks for IO[str] and uses write, flush, isatty and encoding
        force_terminal=terminal,
        force_jupyter=False,
        color_system="auto" if terminal else None,
        width=None if terminal else WIDTH_WITHOUT_TERMINAL,
        highlight=False,
        markup=False,
        emoji=False,
    )


FEW = 2
"""With this many other evaluations as good as the best one, choosing it is chance."""
SMALL = 0.005
"""Differences below it do not matter."""


def describe_close(monitor: str, values: Sequence[float], best: float, examples: int) -> str | None:
    """Return a line on evaluations that lie within a standard error, or two examples, of the best.

    Args:
        monitor: name of the metric that decides.
        values: of every evaluation that counted, the best one included.
        best: the best of them.
        examples: of the split, 1 or more.

    Returns:
        None if the metric is no share of the examples, the split is large enough, or the best stands out.
    """
    if not all(is_share_of(value, examples) for value in (*values, best)):
        return None
    share = (best * examples + 1) / (examples + 2)  # that of all right has an error, too
    error = math.sqrt(share * (1.0 - share) / examples)
    margin = max(error, 2.0 / examples)
    close = sum(abs(value - best) <= margin + 1e-9 for value in values) - 1
    if close < FEW or margin < SMALL:
        return None
    return (
        f"{examples} examples: one is {1 / examples:.2g} of {short_name(monitor)}, its standard error {error:.2g}, and "
        f"{close} other evaluations lie as near to the best. Which step is the best is chance: let a loss decide, "
        f"{loss_monitor(monitor)}, or hold out more."
    )


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Write files, each whole or not at all.

    Args:
        files: content by name.
        folder: made when there is a file to write.

    Raises:
        WriteError: the folder cannot be written to.
    """
    for name, content in files.items():
        path = folder / name
        try:
            make_folder(folder)
            write_whole(path, content)
        except OSError as error:
            raise WriteError(
                f"Cannot write {path}: {error.strerror}. Expected a directory with room: set run_dir, or do without: "
                "hooks.pictures=null hooks.projector=null."
            ) from error


def file_name(name: str) -> str:
    """Return a picture's name as the name of a file, such as "mask_dense_kernel" for "mask/dense/kernel".

    Args:
        name: any text.
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_") or "picture"
