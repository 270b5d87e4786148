"""Event files, and the profile of a few steps."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary

from hookline.trainer.files import make_folder

FLUSH_SECONDS = 5  # a curve on screen is at most this old, and one report
PATTERN = "events.out.tfevents.*"


class EventFiles:
    """Write events into `<directory>/<split>`; a failure is an OSError.

    `tf.summary` has no record of a restart (`SessionLog`), by which TensorBoard drops the steps that are repeated.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        self.directory = directory
        self._writers: dict[str, tf.io.TFRecordWriter] = {}
        self.begin(first_step)

    def begin(self, first_step: int) -> None:
        """Let events count from another step on, such as after rolling back to a checkpoint; open files stay open."""
        self._first_step, self._flushed_at = first_step, time.monotonic()
        self._started: set[str] = set()

    def exist(self, split: str) -> bool:
        return any((self.directory / split).glob(PATTERN))

    def remove(self, split: str) -> None:
        for path in (self.directory / split).glob(PATTERN):
            path.unlink()

    def write(self, split: str, step: int, summary: Summary) -> None:
        """Write a summary, unless it is empty."""
        if summary.value:
            self.add(split, Event(step=step, summary=summary))

    def add(self, split: str, event: Event) -> None:
        with self._writing(split):
            if split not in self._writers:
                self._open(split)
            if split not in self._started:  # at a second START, TensorBoard drops what it has from this step on
                start = SessionLog(status=SessionLog.START)
                self._put(split, Event(step=self._first_step + 1, session_log=start))
                self._started.add(split)
            self._put(split, event)
        if time.monotonic() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._flushed_at = time.monotonic()
        for split in list(self._writers):
            with self._writing(split):
                self._writers[split].flush()

    def close(self) -> None:
        """Close all files; after a failure, the others as well."""
        with ExitStack() as stack:
            for split in list(self._writers):
                stack.callback(self._close, split)

    def _close(self, split: str) -> None:
        with self._writing(split):
            self._writers.pop(split).close()

    @contextmanager
    def _writing(self, split: str) -> Iterator[None]:
        """Turn TensorFlow's errors into an OSError, and drop the writer: the next event opens a further file."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            if (writer := self._writers.pop(split, None)) is not None:
                with suppress(tf.errors.OpError):
                    writer.close()
            raise OSError(f"Cannot write {self.directory}/{split}: {error}. Or set hooks.tensorboard=null.") from error

    def _open(self, split: str) -> None:
        make_folder(self.directory)
        make_folder(path := self.directory / split)  # TensorFlow would follow links
        # TensorBoard reads files in the order of their names.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writers[split] = tf.io.TFRecordWriter(str(path / name))
        self._put(split, Event(file_version="brain.Event:2"))

    def _put(self, split: str, event: Event) -> None:
        event.wall_time = time.time()
        self._writers[split].write(event.SerializeToString())


WARM_UP = 20  # steps before a profile: the first ones set things up


class StepProfile:
    """Take the profile of some steps, once per process. A failure is one warning, and training continues."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._edges: tuple[int, ...] = ()
        self._running = False

    def plan(self, step: int, total_steps: int) -> None:
        """Choose the steps: after 20 of this process, or fewer where no more are left."""
        begin = max(step + 1, min(step + WARM_UP, total_steps - self._steps))
        self._edges = (begin, begin + self._steps) if self._steps else ()

    def next_step(self, step: int) -> int | None:
        """Return the next edge that the profile needs, after `step`."""
        return next((edge for edge in self._edges if edge > step), None)

    def at_edge(self, step: int, directory: Path) -> None:
        if self._running and step >= self._edges[1]:
            self.stop()
        elif not self._running and step in self._edges[:1]:
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
            warnings.warn(f"No profile could be taken: {error}".partition("\n")[0], stacklevel=4)
