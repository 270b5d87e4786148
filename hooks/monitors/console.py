"""The console that a run prints to, and tables in which no number is truncated."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from hookline.trainer.errors import printable

WIDTH_WITHOUT_TERMINAL = 120
AUTO, PLAIN, QUIET = "auto", "plain", "quiet"
"""Modes of printing: chosen by the output; without control characters; not at all."""


class LastingStream(io.TextIOBase):
    """Forward text to a stream, if any; drop the text once its reader has exited (`| head`, a closed terminal)."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property over the base's attribute
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def write(self, text: str) -> int:
        """Write text; replace characters that the stream's encoding lacks with question marks."""
        self._try("write", text.encode(self.encoding, "replace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def _try(self, method: str, *arguments: str) -> None:
        if self._stream is None or self._stream.closed:
            return
        try:
            getattr(self._stream, method)(*arguments)
        except OSError:
            stream, self._stream = self._stream, None  # so that later prints and the flush at exit succeed
            with suppress(OSError), open(os.devnull, "wb") as null:  # the stream may have no descriptor
                os.dup2(null.fileno(), stream.fileno())


class SteadyConsole(Console):
    """Never hide the cursor, since a killed process could not restore it; escape unprintable characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text that is safe to display: names in it may come from untrusted files."""
        return super().render_str(printable(text, keep="\n\t"), **options)

    def show_cursor(self, show: bool = True) -> bool:
        return False


def is_terminal(stream: io.TextIOBase) -> bool:
    """Return whether the stream interprets control sequences, and neither CI nor NO_COLOR requests plain text."""
    if os.environ.get("NO_COLOR") or os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        return False
    return stream.isatty() and os.environ.get("TERM", "").lower() not in {"", "dumb", "unknown"}


def open_console(mode: str = AUTO) -> Console:
    """Return a console on the current standard output; printing never fails because the reader has exited."""
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


GAP = 2
"""Spaces between columns."""
NONE = "-"
"""A cell without a value."""


@dataclass(frozen=True)
class TextTable:
    """Hold the texts of a table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]  # a text for each column
    left_out_first: Sequence[str] = ()  # columns that are dropped, in this order, until the others fit
    texts: Collection[str] = ()  # left-aligned columns besides the first; the others are right-aligned

    def is_text(self, column: str) -> bool:
        """Return whether a column is aligned left."""
        return column == self.columns[0] or column in self.texts


def show(console: Console, table: TextTable) -> None:
    """Print a table: all columns into a pipe; on a terminal as many columns as fit, or a line for each cell."""
    texts = [[name, *(printable(row[index]) for row in table.rows)] for index, name in enumerate(table.columns)]
    columns, room = texts, console.width if console.is_terminal else sys.maxsize
    for name in table.left_out_first:
        if _width(columns) > room:
            columns = [column for column in columns if column[0] != name]
    console.print(table.title, style="bold", soft_wrap=not console.is_terminal)
    if not table.rows:
        return
    if _width(columns) <= room:
        head, *lines = zip(*(_padded(column, left=table.is_text(column[0])) for column in columns), strict=True)
        console.print((" " * GAP).join(head).rstrip(), style="bold", soft_wrap=True)
        for line in lines:
            console.print((" " * GAP).join(line).rstrip(), soft_wrap=True)
    else:
        columns = texts
        (_, *names), *lines = zip(*columns, strict=True)
        for first, *others in lines:
            console.print(first, soft_wrap=True)
            for name, cell in zip(_padded(names, left=True), others, strict=True):
                if cell != NONE:
                    console.print(f"  {name}  {cell}", soft_wrap=True)
    if missing := [name for name, *_ in texts if name not in {shown for shown, *_ in columns}]:
        console.print(
            f"Not shown for lack of room: {', '.join(missing)}.", style="dim", soft_wrap=not console.is_terminal
        )


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(cell_len, column)) + GAP for column in columns) - GAP


def _padded(column: Sequence[str], *, left: bool) -> list[str]:
    """Return texts padded to the same width."""
    blanks = [" " * (_width([column]) - cell_len(text)) for text in column]
    return [text + blank if left else blank + text for text, blank in zip(column, blanks, strict=True)]
