"""Event files: a writer for each split, opened on first use, and let go of when something cannot be written."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trainer.errors import WriteError
from trainer.files import make_folder

SHOW = threading.excepthook
FLUSH_SECONDS = 5  # a curve on screen is at most this old
QUEUE_LENGTH = 100
PATTERN = "events.out.tfevents.*"


class EventFiles:
    """Write events into `<directory>/<split>`. A thread of each writer writes; its errors surface at the next event."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """Set where events go; nothing is written yet.

        Args:
            directory: made with the first event.
            first_step: of this process: of what was written before, later steps count no more.
        """
        self.directory = directory
        self._first_step = first_step
        self._writers: dict[str, EventFileWriter] = {}
        self._started: set[str] = set()
        self._second_of_failure = 0

    def begin(self, first_step: int) -> None:
        """Let events count from another step on, such as after going back to a checkpoint; open files go on.

        Args:
            first_step: as for the constructor.
        """
        self._first_step = first_step
        self._started.clear()

    def exist(self, split: str) -> bool:
        """Return whether there are events of a split, such as those of an earlier process of the run."""
        return any((self.directory / split).glob(PATTERN))

    def remove(self, split: str) -> None:
        """Remove all events of a split."""
        with self._writing(split):
            for path in (self.directory / split).glob(PATTERN):
                path.unlink()

    def write(self, split: str, step: int, summary: Summary) -> None:
        """Write a summary; one without values is left out.

        Args:
            split: the folder.
            step: steps made.
            summary: its values.

        Raises:
            WriteError: the folder cannot be written to.
        """
        if summary.value:
            self.add(split, Event(step=step, summary=summary))

    def add(self, split: str, event: Event) -> None:
        """Write any event, with the time of now.

        Args:
            split: the folder.
            event: to write.

        Raises:
            WriteError: the folder cannot be written to.
        """
        with self._writing(split):
            event.wall_time = time.time()
            self._writer(split).add_event(event)

    def flush(self) -> None:
        """Return when all events are on disk."""
        for split in list(self._writers):
            with self._writing(split):
                self._writers[split].flush()

    def close(self, *splits: str) -> None:
        """Close the files of some splits; without any, of all. After a failure, the others are closed as well.

        Raises:
            WriteError: the first failure.
        """
        failures: list[WriteError] = []
        for split in splits or list(self._writers):
            try:
                with self._writing(split):
                    self._writers[split].flush()  # close does not tell what could not be written
                    self._writers.pop(split).close()
            except WriteError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    @contextmanager
    def _writing(self, split: str) -> Iterator[None]:
        """Turn a failure into one line, and let go of the writer: the next event opens a further file."""
        failures = (OSError, tf.errors.OpError)  # TensorBoard writes by TensorFlow where that is installed
        try:
            yield
        except failures as error:
            self._second_of_failure = int(time.time())
            if (writer := self._writers.pop(split, None)) is not None:
                with suppress(*failures):
                    writer.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise WriteError(
                f"Cannot write {self.directory}/{split}: {reason}. Expected a directory with room: set run_dir, or do "
                "without: hooks.tensorboard=null."
            ) from error

    def _writer(self, split: str) -> EventFileWriter:
        """Return the writer of a split, opened on first use, in which events count from the first step on."""
        if split not in self._writers:
            path = self.directory / split
            make_folder(self.directory)
            make_folder(path)  # TensorFlow would follow links
            if not os.access(path, os.W_OK | os.X_OK):  # the writer's thread would fail later and less clearly
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            while int(time.time()) == self._second_of_failure:  # files are read by name, which begins with the second
                time.sleep(0.05)
            threading.excepthook = _show_others
            self._writers[split] = EventFileWriter(str(path), QUEUE_LENGTH, FLUSH_SECONDS)
        if split not in self._started:  # at a second START, TensorBoard drops what it has from this step on
            start = Event(step=self._first_step + 1, session_log=SessionLog(status=SessionLog.START))
            self._writers[split].add_event(start)
            self._started.add(split)
        return self._writers[split]


def _show_others(failure: threading.ExceptHookArgs) -> None:
    """Show why a thread ended, but for the writers' own: the next event raises what they met."""
    if type(failure.thread).__module__ != EventFileWriter.__module__:
        SHOW(failure)
