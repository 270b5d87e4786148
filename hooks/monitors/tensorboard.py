"""TensorBoard: scalars of every report; config, plan and result as text; hyperparameters. Written from the host."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from omegaconf import OmegaConf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.image.metadata import create_summary_metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from hooks.monitors.hyperparameters import end_summary, hyperparameters, reached_values, start_summary
from hooks.monitors.network_table import as_markdown, network_tables
from hooks.monitors.pictures import encode_picture
from hooks.options import check_integer
from trainer.config.stored import read_overrides
from trainer.errors import WriteError
from trainer.hook import HostHook
from trainer.run.control import Report
from trainer.run.results import COMPLETE, format_value, metric_rows

if TYPE_CHECKING:
    from trainer.run.control import Run

DIRECTORY_NAME = "tensorboard"
SESSION = "hparams"
"""Where hyperparameters and what came of them stand: apart from the curves, so that no curve is in their table."""
FLUSH_SECONDS = 5  # a curve on screen is at most this old
QUEUE_LENGTH = 100


class TensorBoard(HostHook):
    """Write event files to `tensorboard/train`, `tensorboard/validation` and `tensorboard/test`.

    All scalars of a report go into one event, so curves of the splits overlay under one tag. The step is the number
    of optimizer steps. A thread of the writer does the writing; its errors surface at the next report.

    `tensorboard/hparams` holds the hyperparameters, and at the end the best values on the validation split and those on
    the test split: TensorBoard's HPARAMS tab shows a row for each run below its directory.

    Group:
        monitor

    State:
        evaluations: how many there have been. TensorBoard itself drops the records of steps that a resumed run repeats.

    Cost:
        On a thread of its own. Measured: 0.5 s of the loop for `recipe=baseline` (100 epochs, 11 sets of pictures).

    Pitfalls:
        tests/unit/monitors/test_tensorboard.py: event files are read back; a resumed run heals its curves; no thread
            and no open file stays behind; a full disk ends no run.
        tests/unit/monitors/test_hyperparameters.py: what was set, best values and those of the test are in one row.

    Example:
        python train.py recipe=attention hooks.tensorboard.pictures_every=1
    """

    def __init__(self, *, pictures_every: int = 10) -> None:
        """Set up; files are opened when training begins.

        Args:
            pictures_every: evaluations between two sets of the hooks' pictures, the first and the test included; 0
                for none, not even of training examples at the start.
        """
        self._pictures_every = check_integer("pictures_every", pictures_every, minimum=0)
        self._evaluations = 0
        self._directory: Path | None = None
        self._writers: dict[str, EventFileWriter] = {}
        self._first_step = 0
        self._started: set[str] = set()
        self._second_of_failure = 0

    def state_dict(self) -> dict[str, Any]:
        """Return how many evaluations there were. The reader drops the records of steps that a resumed run repeats."""
        return {"evaluations": self._evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])

    def on_fit_begin(self, run: Run) -> None:
        self._directory = run.directory / DIRECTORY_NAME
        self._first_step, self._started = run.step, set()
        self._evaluations = self._evaluations if run.step else 0
        self._write_texts(run.step, {"run/config": config_as_markdown(run.config), "run/plan": run.plan})
        self._open_session(run)
        if self._pictures_every and (pictures := run.first_pictures()):
            self._write("train", run.step, picture_summary(pictures))
        self._flush()

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        if report is not None:
            self._write(report.split, report.step, scalar_summary(report))

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        self._write(report.split, report.step, scalar_summary(report))
        if self._pictures_every and (report.split == "test" or self._evaluations % self._pictures_every == 0):
            self._write("train", report.step, picture_summary(run.pictures(report.step, report.split)))
        self._evaluations += 1

    def before_save(self, run: Run) -> None:
        self._flush()

    def on_exception(self, run: Run, error: BaseException) -> None:
        self._close()

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        if self._directory is not None:
            texts = {"run/summary": summary_as_markdown(summary), "run/networks": as_markdown(network_tables(summary))}
            self._write_texts(run.step, {tag: text for tag, text in texts.items() if text})
            self._close_session(run, summary)
        self._close()

    def _open_session(self, run: Run) -> None:
        """Write the hyperparameters. Of a run that goes on, this takes the place of what an earlier end has left."""
        with self._writing(SESSION):
            for path in (run.directory / DIRECTORY_NAME / SESSION).glob("events.out.tfevents.*"):
                path.unlink()  # TensorBoard believes the first status of a session, not the last
        values = hyperparameters(run.recipe, run.config, read_overrides(run.directory))
        self._write(SESSION, run.step, start_summary(values, time.time()))
        self._close(SESSION)  # nothing more comes before the end

    def _close_session(self, run: Run, summary: dict[str, Any]) -> None:
        """Write what came of the run; the end is told only where there is one, and not where it will go on."""
        reached = Report(run.step, SESSION, reached_values(summary))
        self._write(SESSION, run.step, scalar_summary(reached))
        if (status := summary.get("status")) in (*COMPLETE, "failed"):
            self._write(SESSION, run.step, end_summary(status, time.time()))

    def _write_texts(self, step: int, texts: dict[str, str]) -> None:
        summary = Summary()
        for tag, text in texts.items():
            summary.MergeFrom(text_pb(tag, text))
        self._write("train", step, summary)

    def _write(self, split: str, step: int, summary: Summary) -> None:
        with self._writing(split):
            self._writer(split).add_event(Event(wall_time=time.time(), step=step, summary=summary))

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
                f"Cannot write {self._directory}/{split}: {reason}. Expected a directory with room: set run_dir, or do "
                "without: hooks.tensorboard=null."
            ) from error

    def _writer(self, split: str) -> EventFileWriter:
        """Return the writer of a split, opened on first use."""
        if self._directory is None:
            raise RuntimeError("tensorboard saw a report before on_fit_begin.")
        if split not in self._writers:
            path = self._directory / split
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):  # the writer's thread would fail later and less clearly
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            while int(time.time()) == self._second_of_failure:  # files are read by name, which begins with the second
                time.sleep(0.05)
            self._writers[split] = EventFileWriter(str(path), QUEUE_LENGTH, FLUSH_SECONDS)
            if split not in self._started:  # at a second START, TensorBoard drops what it has from this step on
                start = Event(step=self._first_step + 1, session_log=SessionLog(status=SessionLog.START))
                self._writers[split].add_event(start)
                self._started.add(split)
        return self._writers[split]

    def _flush(self) -> None:
        for split in list(self._writers):
            with self._writing(split):
                self._writers[split].flush()

    def _close(self, *splits: str) -> None:
        """Close the writers of some splits; without any, of all."""
        for split in splits or list(self._writers):
            with self._writing(split):
                self._writers.pop(split).close()


def scalar_summary(report: Report) -> Summary:
    """Return all values of a report as one summary, marked for TensorBoard's scalars plugin.

    Args:
        report: the report; its values are numbers.
    """
    summary = Summary()
    for name, value in report.values.items():
        summary.MergeFrom(scalar_pb(name, float(value)))
    return summary


def picture_summary(pictures: Mapping[str, np.ndarray]) -> Summary:
    """Return pictures as one summary, marked for TensorBoard's images plugin.

    Args:
        pictures: float [height, width, channels] in [0, 1], 1 or 3 channels, by name.
    """
    summary = Summary()
    for name, picture in pictures.items():
        encoded = encode_picture(name, picture)
        height, width = picture.shape[:2]
        metadata = create_summary_metadata(display_name=name, description="")
        tensor = make_tensor_proto(np.array([str(width).encode(), str(height).encode(), encoded], dtype=object))
        summary.value.add(tag=name, metadata=metadata, tensor=tensor)
    return summary


def config_as_markdown(config: dict[str, Any]) -> str:
    """Return the resolved config as a fenced block of YAML.

    Args:
        config: plain dicts and lists.
    """
    return f"```yaml\n{OmegaConf.to_yaml(OmegaConf.create(config))}```"


def summary_as_markdown(summary: dict[str, Any]) -> str:
    """Return the result as a Markdown table of the metrics, followed by everything that `summary.json` holds.

    Args:
        summary: what `summary.json` holds.
    """
    lines = ["| | train (final) | validation (best) | test |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {' | '.join(format_value(value) for value in values)} |" for name, *values in metric_rows(summary)
    ]
    return "\n".join([*lines, "", "```json", json.dumps(summary, indent=2, default=str), "```"])
