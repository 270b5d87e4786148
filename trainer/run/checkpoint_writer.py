"""Write in the background, so that training goes on: one thing is being written, one may wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trainer.run.checkpoint_directory import LAST


@dataclass(frozen=True)
class Snapshot:
    """Hold what a checkpoint will hold, as it is now.

    Attributes:
        tags: that it will have.
        step: steps made.
        tensors: arrays by key, which nobody changes any more. Until it is submitted, what gives them.
        state: JSON.
    """

    tags: frozenset[str]
    step: int
    tensors: Mapping[str, np.ndarray]
    state: bytes


class BackgroundWriter:
    """Write one snapshot after another in a thread, which is there only while there is something to write.

    One is being written, one may wait. A waiting one that is only the "last" gives way to a later one, which is better
    to go on from and takes its tag; any other is waited for. So memory holds two copies of a run at most besides the
    run, and training stalls only where two saves that must both stay come faster than the disk writes one.
    """

    def __init__(self, write: Callable[[Snapshot], None]) -> None:
        """Set up; no thread is started.

        Args:
            write: called in the thread; raises nothing.
        """
        self._write = write
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._thread: threading.Thread | None = None

    def submit(self, snapshot: Snapshot) -> None:
        """Have a snapshot written soon. Its tensors are asked for here, once there is room for them.

        Args:
            snapshot: to write.
        """
        with self._changed:
            while self._waiting is not None and self._waiting.tags != {LAST}:
                self._changed.wait()
            if self._waiting is not None:
                snapshot = replace(snapshot, tags=snapshot.tags | {LAST})
            self._waiting = None  # before the next one is read: two copies, not three
            self._waiting = replace(snapshot, tensors=dict(snapshot.tensors))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="checkpoints")  # an exit waits for it
                try:
                    self._thread.start()
                except RuntimeError:  # the system has no thread left
                    self._work()

    def wait(self) -> None:
        """Return when nothing is left to write."""
        with self._changed:
            while self._thread is not None:
                self._changed.wait()

    def _work(self) -> None:
        while (snapshot := self._next()) is not None:
            self._write(snapshot)

    def _next(self) -> Snapshot | None:
        """Return what waits; where nothing does, this thread is over."""
        with self._changed:
            snapshot, self._waiting = self._waiting, None
            if snapshot is None:
                self._thread = None
            self._changed.notify_all()
            return snapshot
