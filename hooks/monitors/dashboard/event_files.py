"""Event files, and the profile of a few steps."""

from __future__ import annotations

import errno
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from hookline.trainer.errors import WriteError
from hookline.trainer.files import make_folder
from hookline.trainer.run.control import Cadence

SHOW = threading.excepthook
FLUSH_SECONDS = 5  # a curve on screen is at most this old
QUEUE_LENGTH = 100
PATTERN = "events.out.tfevents.*"


class EventFiles:
    """Write events into `<directory>/<split>`; errors of a writer's thread surface at the next event.

    `tf.summary` has no record of a restart (`SessionLog`), by which TensorBoard drops the steps that are repeated.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        self.directory = directory
        self._first_step = first_step
        self._writers: dict[str, EventFileWriter] = {}
        self._started: set[str] = set()
        self._second_of_failure = 0

    def begin(self, first_step: int) -> None:
        """Let events count from another step on, such as after rolling back to a checkpoint; open files stay open."""
        self._first_step = first_step
        self._started.clear()

    def exist(self, split: str) -> bool:
        return any((self.directory / split).glob(PATTERN))

    def remove(self, split: str) -> None:
        with self._writing(split):
            for path in (self.directory / split).glob(PATTERN):
                path.unlink()

    def write(self, split: str, step: int, summary: Summary) -> None:
        """Write a summary, unless it is empty."""
        if summary.value:
            self.add(split, Event(step=step, summary=summary))

    def add(self, split: str, event: Event) -> None:
        with self._writing(split):
            event.wall_time = time.time()
            self._writer(split).add_event(event)

    def flush(self) -> None:
        for split in list(self._writers):
            with self._writing(split):
                self._writers[split].flush()

    def close(self, *splits: str) -> None:
        """Close the files of some splits; without any, of all. After a failure, the others are closed as well."""
        with ExitStack() as stack:
            for split in splits or list(self._writers):
                stack.callback(self._close, split)

    def _close(self, split: str) -> None:
        with self._writing(split):
            self._writers[split].flush()  # close does not report what could not be written
            self._writers.pop(split).close()

    @contextmanager
    def _writing(self, split: str) -> Iterator[None]:
        """Turn a failure into one line, and drop the writer: the next event opens a further file."""
        failures = (OSError, tf.errors.OpError)  # TensorBoard writes through TensorFlow if that is installed
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
        """Return the writer of a split, opened on first use; its events count from the first step on."""
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
    """Show why a thread ended, except for the writers' own: the next event raises their errors."""
    if type(failure.thread).__module__ != EventFileWriter.__module__:
        SHOW(failure)


WARM_UP = 20  # steps before a profile: the first ones set things up


class StepProfile:
    """Take the profile of some steps, once per process. A failure is one warning, and training continues."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._edges: tuple[int, ...] = ()
        self._running = False

    def plan(self, step: int, total_steps: int, steps_per_epoch: float) -> None:
        """Choose the steps: after 20 of this process, or fewer where no more are left; without an evaluation."""
        if not self.steps:
            return
        begin = min(step + WARM_UP, total_steps - self.steps)
        if begin <= step:
            warnings.warn(f"No profile: {total_steps - step} steps leave none to warm up.", stacklevel=2)
            return
        evaluation = Cadence(total_steps, steps_per_epoch, 1, None).next_evaluation(begin - 1)
        if evaluation < begin + self.steps and evaluation + 1 + self.steps <= total_steps:
            begin = evaluation + 1
        self._edges = (begin, begin + self.steps)

    def next_step(self, step: int) -> int | None:
        """Return the next edge that the profile needs, after `step`."""
        return next((edge for edge in self._edges if edge > step), None)

    def at_edge(self, step: int, directory: Path) -> None:
        if not self._edges:
            return
        begin, end = self._edges
        if self._running and step >= end:
            self.stop()
        elif not self._running and begin <= step < end:
            with self._one_line():
                tf.profiler.experimental.start(str(directory))
                self._running = True

    def stop(self) -> None:
        if self._running:
            self._running, self._edges = False, ()
            with self._one_line():
                tf.profiler.experimental.stop()

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            self._edges = ()
            reason = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
            warnings.warn(f"No profile could be taken: {reason}", stacklevel=4)
