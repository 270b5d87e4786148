"""The console that a run prints on."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from hookline.trainer.errors import printable

WIDTH_WITHOUT_TERMINAL = 120
AUTO, PLAIN, QUIET = "auto", "plain", "quiet"
"""Modes of printing: as the output allows; without control characters; not at all."""


class LastingStream(io.TextIOBase):
    """Pass text on to a stream, perhaps none; when its reader leaves (`| head`, a closed terminal), drop the text."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property over the base's attribute
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and not self._stream.closed and self._stream.isatty()

    def write(self, text: str) -> int:
        """Write text; what the stream's encoding lacks becomes a question mark."""
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
            stream, self._stream = self._stream, None  # no later print and no flush at exit fails either
            with suppress(OSError), open(os.devnull, "wb") as null:  # or the stream has no descriptor
                os.dup2(null.fileno(), stream.fileno())


class SteadyConsole(Console):
    """Never hide the cursor: a process that is killed could not show it again. Print texts as they can be shown."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text that is safe to show: names in it may come from strangers."""
        return super().render_str(printable(text, keep="\n\t"), **options)

    def show_cursor(self, show: bool = True) -> bool:
        del show
        return False


def is_terminal(stream: io.TextIOBase) -> bool:
    """Return whether the stream interprets control sequences, and neither CI nor NO_COLOR asks for plain text."""
    if os.environ.get("NO_COLOR") or os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        return False
    return stream.isatty() and os.environ.get("TERM", "").lower() not in {"", "dumb", "unknown"}


def open_console(mode: str = AUTO) -> Console:
    """Return a console on the present standard output; it never raises because the reader has left."""
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
