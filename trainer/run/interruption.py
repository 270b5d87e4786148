"""SIGINT, SIGTERM and the wall-clock budget: finish the step, save, close, leave; a second Ctrl-C leaves at once."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Report that a run ended early, on request; what it needs to resume is saved.

    Attributes:
        signal_number: that asked for it; None for the wall-clock budget.
        outcome: what the run has left until then; None before its end has been written.
    """

    def __init__(self, message: str, signal_number: int | None) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.outcome: Any = None


@dataclass
class Interruption:
    """Record what asked the run to end.

    Attributes:
        max_seconds: wall time after which the run shall end; None for no limit.
        signal_number: that came; None for none.
    """

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
        """Record the first signal instead of being stopped by it; the next one stops the process at once.

        The next one is left to the operating system, which acts even while TensorFlow computes. Only the main thread
        can handle signals; elsewhere, nothing changes.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup wants it
        before = {number: signal.signal(number, self._note) for number in heard}
        try:
            with _ended_by_a_second():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.signal_number = number
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)


@contextmanager
def _ended_by_a_second() -> Iterator[None]:
    """End the process at a second signal that arrives before Python has handled the first.

    Python's handlers wait until TensorFlow's computation ends, and then merge several signals into one. `set_wakeup_fd`
    writes each number at once, so none is lost.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_end_at_a_second, args=[ours], name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
        thread.join()
        ours.close()


def _end_at_a_second(numbers: socket.socket) -> None:
    heard = 0
    while received := numbers.recv(1):
        heard += received[0] in SIGNALS
        if heard == 2:
            os._exit(128 + received[0])


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
