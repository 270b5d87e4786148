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
        state: JSON; None where it is too large to be written.
    """

    tags: frozenset[str]
    step: int
    tensors: Mapping[str, np.ndarray]
    state: bytes | None


class BackgroundWriter:
    """Write one snapshot after another in a thread, which is there only while there is something to write.

    One is being written, one may wait. A waiting one that is only the "last" gives way to a later one, which is better
    to go on from and takes its tag; any other is waited for. So memory holds two copies of a run at most besides the
    run, and training stalls only where two saves that must both stay come faster than the disk writes one.

    What could not be written is kept, one more copy for each tag, until a later snapshot has its tags, and tried again
    before the next one is. Nothing is written past it: at any moment, the disk holds what a kill could have left.
    """

    def __init__(self, write: Callable[[Snapshot], bool]) -> None:
        """Set up; no thread is started.

        Args:
            write: called in the thread; raises nothing, and returns whether it is written.
        """
        self._write = write
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._unwritten: list[Snapshot] = []
        self._thread: threading.Thread | None = None

    @property
    def unwritten(self) -> list[Snapshot]:
        """Return what could not be written so far, in the order in which it came."""
        return list(self._unwritten)

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
            self._unwritten = _without(self._unwritten, snapshot.tags)
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

    def retry(self) -> None:
        """Try once more to write what could not be written, and return when nothing is being written."""
        self.wait()
        self._write_all(self._unwritten)

    def forget(self) -> None:
        """Let go of what could not be written: training goes back to before it."""
        self.wait()
        self._unwritten = []

    def _work(self) -> None:
        while (snapshot := self._next()) is not None:
            self._write_all([*_without(self._unwritten, snapshot.tags), snapshot])

    def _write_all(self, snapshots: list[Snapshot]) -> None:
        written = 0
        while written < len(snapshots) and self._write(snapshots[written]):
            written += 1
        with self._changed:
            self._unwritten = snapshots[written:]

    def _next(self) -> Snapshot | None:
        """Return what waits; where nothing does, this thread is over."""
        with self._changed:
            snapshot, self._waiting = self._waiting, None
            if snapshot is None:
                self._thread = None
            self._changed.notify_all()
            return snapshot


def _without(snapshots: list[Snapshot], tags: frozenset[str]) -> list[Snapshot]:
    """Return the snapshots that still have a tag once some tags belong to a later one."""
    return [replace(each, tags=each.tags - tags) for each in snapshots if each.tags - tags]
