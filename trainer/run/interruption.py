"""SIGINT, SIGTERM and the time budget: finish the step, save, close, end; a second signal after it ends at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Report that a run ended early, on request; what it needs to resume is saved."""

    def __init__(self, message: str, signal_number: int | None) -> None:
        super().__init__(message)
        self.signal_number = signal_number  # None for the time budget
        self.outcome: Any = None  # set once the summary is written


@dataclass
class Interruption:
    """Record what asked the run to end: a signal, or the end of the wall time `max_seconds`."""

    max_seconds: float | None = None
    signal_number: int | None = None
    _since: float = field(default_factory=time.monotonic)

    @property
    def reason(self) -> str | None:
        """Return why the run shall end, in words; None to continue."""
        if self.signal_number is not None:
            return signal.Signals(self.signal_number).name
        if self.max_seconds is not None and time.monotonic() - self._since >= self.max_seconds:
            return f"trainer.max_seconds={self.max_seconds:g}"
        return None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record a signal once TensorFlow has computed; the next one ends the process. Only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # for nohup
        before = {number: signal.signal(number, self._note) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal_number = number
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)  # the operating system acts even while TensorFlow computes


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let SIGTERM raise `Interrupted` inside, as SIGINT raises KeyboardInterrupt, so that files are closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    raise Interrupted(f"Ended by {signal.Signals(number).name}.", number)
