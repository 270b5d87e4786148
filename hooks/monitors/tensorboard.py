"""TensorBoard: event files, written from the host, with every report and the data behind it for each tab."""

from __future__ import annotations

import os
import re
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary

from hookline.hooks.monitors import records
from hookline.hooks.monitors.final_table import as_markdown, network_tables
from hookline.hooks.monitors.pictures import is_due
from hookline.trainer.config.stored import read_overrides
from hookline.trainer.errors import check_integer
from hookline.trainer.files import make_folder, read_bytes
from hookline.trainer.hook import HostHook, Report, Run
from hookline.trainer.run.directory import ENVIRONMENT, config_text
from hookline.trainer.run.results import COMPLETE

DIRECTORY_NAME = "tensorboard"
TRAIN = "train"
SESSION = "hparams"  # hyperparameters and results, apart from the curves so that no curve appears in their table


class TensorBoard(HostHook):
    """Write event files to `tensorboard/train`, `tensorboard/validation` and `tensorboard/test`.

    The CUSTOM SCALARS tab groups related curves. There are also histograms of the weights, pictures, the graph of the
    traced step, and the environment, config, plan and result as text.

    `tensorboard/hparams` contains the hyperparameters, the best validation values and the test values: a row of
    TensorBoard's HPARAMS tab.

    Group: monitor

    State:
        evaluations: number of evaluations so far. TensorBoard itself drops the records of steps that a resumed run
            repeats.

    Cost: 0.5 s of the loop for `recipe=baseline` (100 epochs, 11 sets of pictures).

    Pitfalls:
        tests/hooks/monitors/test_tensorboard.py: a resumed run has no duplicate points; a full disk does not end a run.
        tests/hooks/monitors/test_records.py: hyperparameters and results are in one row.

    Example:
        python train.py recipe=attention hooks.tensorboard.pictures_every=1
    """

    def __init__(
        self, *, pictures_every: int = 10, histograms_every: int = 10, graph: bool = True, profile_steps: int = 0
    ) -> None:
        """Set what to write.

        Args:
            pictures_every: evaluations between two sets of pictures, including the first and the test; 0 for none.
            histograms_every: evaluations between two sets of histograms, taken on the validation split, including the
                first and the last; 0 for none, not even of the initial weights.
            graph: whether to write the graph of the traced step, once per run.
            profile_steps: number of steps, after the first 20, to profile with TensorFlow's profiler; 0 for none.
        """
        self._pictures_every = check_integer("pictures_every", pictures_every, minimum=0)
        self._histograms_every = check_integer("histograms_every", histograms_every, minimum=0)
        self._graph = graph
        self._profile = StepProfile(check_integer("profile_steps", profile_steps, minimum=0))
        self._evaluations = 0
        self._files: EventFiles  # while a fit runs
        self._fitting = False

    def state_dict(self) -> dict[str, Any]:
        if self._fitting:
            self._files.flush()
        return {"evaluations": self._evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])

    def next_step(self, step: int) -> int | None:
        return self._profile.next_step(step)

    def on_fit_begin(self, run: Run) -> None:
        self._names: set[str] = set()
        self._laid_out: set[str] = set()
        self._evaluations = self._evaluations if run.step else 0
        if self._fitting:  # a rollback: files stay open, and their first records stay valid
            self._profile.stop()
            self._files.begin(run.step)
            return
        self._fitting, self._files = True, EventFiles(run.directory / DIRECTORY_NAME, run.step)
        self._profile.plan(run.step, run.total_steps)
        if not run.step:
            self._files.remove(TRAIN)  # files of a run that was killed as it began
        begun = self._files.exist(TRAIN)
        texts = {"run/config": f"```yaml\n{config_text(run.config)}```", "run/plan": run.plan}
        if (environment := run.directory / ENVIRONMENT).exists():
            texts["run/environment"] = f"```json\n{read_bytes(environment).decode(errors='replace')}```"
        self._write_texts(run.step, texts)
        self._files.remove(SESSION)  # a resumed run replaces it: TensorBoard uses the first status, not the last
        if run.from_checkpoint:
            self._files.remove("test")  # it tests again, perhaps at the same step
        values = records.hyperparameters(run.recipe, run.config, read_overrides(run.directory))
        self._files.write(SESSION, run.step, records.start_summary(values))
        if self._graph and not begun and (event := records.graph_event(run.graph())) is not None:
            self._files.add(TRAIN, event)
        if self._pictures_every and not begun and (pictures := run.views.first_pictures):
            self._files.write(TRAIN, run.step, records.picture_summary(pictures))
        if self._histograms_every and not begun:
            self._files.write(TRAIN, run.step, records.histogram_summary(run.views.distributions(run.step)))
        self._files.flush()

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        self._profile.at_edge(run.step, run.directory / DIRECTORY_NAME / TRAIN)
        if report is not None:
            self._write_report(report)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        number, self._evaluations = self._evaluations, self._evaluations + 1
        self._write_report(report)
        if is_due(self._pictures_every, number, last=report.split == "test"):
            pictures = run.views.shown(report).pictures
            split = "test" if report.split == "test" else TRAIN  # a resumed run tests again
            self._files.write(split, report.step, records.picture_summary(pictures))
        if report.split == "validation" and is_due(self._histograms_every, number, last=run.is_over):
            # At the test, the weights may be those of the best step.
            self._files.write(TRAIN, report.step, records.histogram_summary(run.views.distributions(report.step)))
        if self._names != self._laid_out:
            self._laid_out = set(self._names)
            layout = records.layout_summary(self._names, hooks=run.config.get("hooks") or {}, networks=run.networks)
            self._files.write(TRAIN, report.step, layout)

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        if not self._fitting:
            return
        try:
            networks = as_markdown(network_tables(summary))
            self._write_texts(run.step, {"run/summary": records.summary_as_markdown(summary), "run/networks": networks})
            self._files.write(SESSION, run.step, records.scalar_summary(records.reached_values(summary)))
            if (status := summary.get("status")) in (*COMPLETE, "failed"):  # not for a run that will be resumed
                self._files.write(SESSION, run.step, records.end_summary(status))
        finally:
            self._fitting = False
            self._profile.stop()
            self._files.close()

    def _write_report(self, report: Report) -> None:
        self._files.write(report.split, report.step, records.scalar_summary(report.values))
        self._names |= report.values.keys()

    def _write_texts(self, step: int, texts: dict[str, str]) -> None:
        self._files.write(TRAIN, step, records.text_summary({tag: text for tag, text in texts.items() if text}))


FLUSH_SECONDS = 5  # a curve on screen lags by at most this and one report
PATTERN = "events.out.tfevents.*"
TIME = re.compile(r"events\.out\.tfevents\.(\d{10}(\.\d{6})?)\.")


class EventFiles:
    """Write events into `<directory>/<split>`; a failure raises OSError.

    `tf.summary` cannot write the record of a restart (`SessionLog`) that makes TensorBoard drop repeated steps.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        self.directory = directory
        self._writers: dict[str, tf.io.TFRecordWriter] = {}
        self.begin(first_step)

    def begin(self, first_step: int) -> None:
        """Restart the events at a step, such as after rolling back to a checkpoint; open files stay open."""
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
            if split not in self._started:  # at a second START, TensorBoard drops records from this step on
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
        """Close all files, even if closing one of them fails."""
        with ExitStack() as stack:
            for split in list(self._writers):
                stack.callback(self._close, split)

    def _close(self, split: str) -> None:
        with self._writing(split):
            self._writers.pop(split).close()

    @contextmanager
    def _writing(self, split: str) -> Iterator[None]:
        """Convert TensorFlow's errors to OSError, and drop the writer: the next event opens a new file."""
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
        # TensorBoard reads files in the order of their names, and the clock may have gone back.
        earlier = (TIME.match(each.name) for each in path.glob(PATTERN))
        now = max([time.time(), *(float(found[1]) + 1e-3 for found in earlier if found)])
        name = f"events.out.tfevents.{now:017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._writers[split] = tf.io.TFRecordWriter(str(path / name))
        self._put(split, Event(file_version="brain.Event:2"))

    def _put(self, split: str, event: Event) -> None:
        event.wall_time = time.time()
        self._writers[split].write(event.SerializeToString())


WARM_UP = 20  # steps before a profile: the first ones include setup


class StepProfile:
    """Profile some steps, once per process. After a failure, warn once and let training continue."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._edges: tuple[int, ...] = ()
        self._running = False

    def plan(self, step: int, total_steps: int) -> None:
        """Choose the steps to profile: after 20 steps of this process, or after fewer if too few are left."""
        begin = max(step + 1, min(step + WARM_UP, total_steps - self._steps))
        self._edges = (begin, begin + self._steps) if self._steps else ()

    def next_step(self, step: int) -> int | None:
        """Return the next step after `step` at which the profile starts or ends, or None."""
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
