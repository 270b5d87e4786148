"""What loggers to other services share: a thread sends the reports, so a slow or broken service holds up no step."""

from __future__ import annotations

import importlib
import json
import math
import re
import threading
import uuid
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from hookline.hooks import technique_hooks
from hookline.hooks.monitors.dashboard.hyperparameters import hyperparameters, reached_values
from hookline.hooks.monitors.metrics_jsonl import FILE_NAME, lines_until
from hookline.hooks.monitors.pictures import DIRECTORY_NAME
from hookline.hooks.options import check_number
from hookline.trainer.config.stored import read_overrides
from hookline.trainer.errors import UserError, one_line
from hookline.trainer.files import parse_json, read_json, write_whole
from hookline.trainer.hook import HostHook
from hookline.trainer.run.results import COMPLETE

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report
    from hookline.trainer.run.run import Run


MOST_WAITING = 10_000
"""Steps that wait for a slow service."""


@dataclass(frozen=True)
class Facts:
    """Hold what a service is told of a run when it begins."""

    directory: Path
    config: Mapping[str, Any]
    settings: Mapping[str, bool | float | str]  # the main ones
    tags: list[str]


@dataclass(frozen=True)
class End:
    """Hold what a service is told at the end."""

    complete: bool  # whether the run will not be resumed
    reached: Mapping[str, float]  # best values of the validation split, and those of the test
    pictures: Mapping[str, Path]


@dataclass
class Steps:
    """Collect the reports of a step; a step is whole when the next one reports."""

    step: int = -1
    values: dict[str, float] = field(default_factory=dict)


class RemoteLogger(HostHook):
    """Send reports to a service, each step once, also where a killed run is resumed.

    A file in the run directory holds the run's id, from before the service is asked for a run: a kill leaves no second
    one. A resumed run sends what `metrics.jsonl` has beyond the last step that the service holds, as what was handed to
    it before a kill may not have arrived. After an error nothing more is sent in this process, and one line says so.
    """

    package = ""

    def __init__(self, timeout: float) -> None:
        self._timeout = check_number("timeout", timeout, minimum=0.0)
        self._queue: Queue[tuple[int, dict[str, float]] | End] = Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._steps = Steps()
        self._failure = ""

    @abstractmethod
    def connect(self, facts: Facts, identifier: str) -> int:
        """Open the run of this id, or a new one; return the last step that the service has, or -1."""

    @abstractmethod
    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step."""

    @abstractmethod
    def finish(self, end: End) -> None:
        """Send what the run has reached, and close it."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the id is in a file of the run, and the service knows its last step."""
        return {}

    def on_fit_begin(self, run: Run) -> None:
        if self._thread is None:
            self._start(run)
        if run.from_checkpoint:
            self._steps = Steps()
            for step, split, values in _stored(run.directory / FILE_NAME, run.step):
                self._collect(step, split, values)

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        if report is not None:
            self._collect(report.step, report.split, report.values)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        self._collect(report.step, report.split, report.values)

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        if (thread := self._thread) is None:
            return
        pictures = {path.stem: path for path in sorted((run.directory / DIRECTORY_NAME).glob("*.png"))}
        self._pass_on()
        self._put(End(summary.get("status") in COMPLETE, reached_values(summary), pictures))
        thread.join(0.0 if self._failure else self._timeout)
        if thread.is_alive() and not self._failure:
            self._failure = f"no answer for {self._timeout:g} s at the end"
        self._warn()
        self._thread = None

    def _start(self, run: Run) -> None:
        try:
            importlib.import_module(self.package)  # here, as importing beside the loop would slow its first steps
        except ImportError as error:
            raise UserError(
                f"The hook '{self.name}' needs the package {self.package}: {one_line(str(error))}. Expected it "
                f"installed: python -m pip install '.[{self.package}]', in a clone of this project."
            ) from error
        settings = hyperparameters(run.recipe, run.config, read_overrides(run.directory))
        tags = [*run.recipe.split("+"), *technique_hooks(run.config.get("hooks") or {})]
        facts = Facts(run.directory.resolve(), run.config, settings, list(dict.fromkeys(tags)))
        self._queue, self._steps, self._failure = Queue(MOST_WAITING), Steps(), ""
        self._thread = threading.Thread(target=self._work, args=(facts, self._queue), name=self.name, daemon=True)
        self._thread.start()

    def _collect(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Add a report; those of the step before are whole."""
        if step != self._steps.step:
            self._pass_on()
            self._steps = Steps(step)
        known = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._steps.values |= {f"{split}/{name}": value for name, value in known.items()}
        self._warn()

    def _pass_on(self) -> None:
        if self._steps.values and not self._failure:
            self._put((self._steps.step, self._steps.values))
        self._steps = Steps()

    def _put(self, job: tuple[int, dict[str, float]] | End) -> None:
        try:
            self._queue.put_nowait(job)
        except Full:
            self._failure = self._failure or f"no answer, and {MOST_WAITING:,} steps wait"

    def _warn(self) -> None:
        """Say once why nothing more is sent; by the thread of the loop, which draws the progress bar as well."""
        if self._failure and self._thread is not None:
            warnings.warn(
                f"The hook '{self.name}' sends nothing more: {self._failure}. Training continues, and {FILE_NAME} has "
                "every report.",
                stacklevel=2,
            )
            self._thread = None

    def _work(self, facts: Facts, queue: Queue[Any]) -> None:
        record = facts.directory / f"{self.package}.json"
        try:
            identifier = str(read_json(record)["id"]) if record.exists() else uuid.uuid4().hex
            if not re.fullmatch("[A-Za-z0-9]{1,64}", identifier):
                raise ValueError(f"{record} names no run")
            write_whole(record, json.dumps({"id": identifier}))
            sent = self.connect(facts, identifier)
            while not isinstance(job := queue.get(), End):
                step, values = job
                if step > sent:
                    self.send(step, values)
                    sent = step
            self.finish(job)
        except Exception as error:  # noqa: BLE001 - whatever a service raises, the run continues
            self._failure = one_line(f"{type(error).__name__}: {error}")[:200]


def _stored(path: Path, step: int) -> Iterator[tuple[int, str, dict[str, float]]]:
    """Yield the reports of metrics.jsonl up to a step."""
    for line in lines_until(path, step) if path.exists() else ():
        values = parse_json(line)
        step, split = int(values.pop("step")), str(values.pop("split"))
        yield step, split, {name: value for name, value in values.items() if value is not None}
