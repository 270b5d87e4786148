"""Base class of loggers to remote services: a thread sends the reports, so a slow or broken service delays no step."""

from __future__ import annotations

import json
import math
import re
import threading
import uuid
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from hookline.hooks import technique_hooks
from hookline.hooks.monitors.metrics_jsonl import FILE_NAME, lines_until
from hookline.hooks.monitors.pictures import DIRECTORY_NAME
from hookline.hooks.monitors.records import hyperparameters, reached_values
from hookline.trainer.config.stored import read_overrides
from hookline.trainer.errors import check_number, import_optional, one_line
from hookline.trainer.files import parse_json, read_json, write_whole
from hookline.trainer.hook import HostHook, Report, Run
from hookline.trainer.run.results import COMPLETE


class RemoteLogger(HostHook):
    """Send reports to a service from a thread, each step once, even if a killed run is resumed.

    A file in the run directory holds the id of the remote run. A resumed run sends the reports in `metrics.jsonl` that
    follow the service's last step. After an error, this process warns once and stops sending reports.
    """

    package = ""
    directory: Path
    config: Mapping[str, Any]
    settings: Mapping[str, bool | float | str]  # the main hyperparameters
    tags: list[str]
    pictures: list[Path]  # files; set at the end
    export: Path | None  # file or directory written by scripts/export.py

    def __init__(self, timeout: float) -> None:
        self._timeout = check_number("timeout", timeout, minimum=0.0)
        self._queue: Queue[Any] = Queue()  # pairs of step and values, then the function that finishes
        self._thread: threading.Thread | None = None
        self._step, self._values = -1, dict[str, float]()  # reports of one step, kept until the next step reports
        self._failure = ""
        self.pictures, self.export = [], None

    @abstractmethod
    def connect(self, identifier: str, reports: bool) -> int:
        """Open the remote run with this id, or create it; return the last step that the service has, or -1."""

    @abstractmethod
    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step."""

    @abstractmethod
    def finish(self, complete: bool, reached: Mapping[str, float]) -> None:
        """Send the results, the pictures and the export, and close the remote run."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def on_fit_begin(self, run: Run) -> None:
        if self._thread is None:
            self._start(run)
        if run.from_checkpoint:
            self._values = {}
            path = run.directory / FILE_NAME
            for line in lines_until(path, run.step) if path.exists() else ():
                values = parse_json(line)
                step, split = int(values.pop("step")), str(values.pop("split"))
                self._collect(step, split, {name: value for name, value in values.items() if value is not None})

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        if report is not None:
            self._collect(report.step, report.split, report.values)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        self._collect(report.step, report.split, report.values)

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        if self._thread is None:
            return
        self.pictures = sorted((run.directory / DIRECTORY_NAME).glob("*.png"))
        self._pass_on()
        self._close(self._thread, summary.get("status") in COMPLETE, reached_values(summary))

    def send_export(self, run: Run, path: Path) -> None:
        """Send an export to the remote run of a completed run, if there is one."""
        if (run.directory / f"{self.package}.json").exists():
            self.export = path
            self._close(self._start(run, reports=False), True, {})

    def _close(self, thread: threading.Thread, complete: bool, reached: Mapping[str, float]) -> None:
        self._queue.put(partial(self.finish, complete, reached))
        thread.join(0.0 if self._failure else self._timeout)
        if thread.is_alive() and not self._failure:
            self._failure = f"no answer for {self._timeout:g} s at the end"
        self._warn()
        self._thread = None

    def _start(self, run: Run, *, reports: bool = True) -> threading.Thread:
        # Imported here: an import in the thread would slow the first steps.
        import_optional(self.package, extra=self.package, needed_by=f"The hook '{self.name}'")
        self.directory, self.config = run.directory.resolve(), run.config
        self.settings = hyperparameters(run.recipe, run.config, read_overrides(run.directory))
        self.tags = list(dict.fromkeys([*run.recipe.split("+"), *technique_hooks(run.config.get("hooks") or {})]))
        self._queue, self._values, self._failure = Queue(), {}, ""
        self._thread = threading.Thread(target=self._work, args=(self._queue, reports), name=self.name, daemon=True)
        self._thread.start()
        return self._thread

    def _collect(self, step: int, split: str, values: Mapping[str, float]) -> None:
        if step != self._step:
            self._pass_on()
            self._step = step
        self._values |= {f"{split}/{name}": float(value) for name, value in values.items() if math.isfinite(value)}
        self._warn()

    def _pass_on(self) -> None:
        if self._values and not self._failure:
            self._queue.put((self._step, self._values))
        self._values = {}

    def _warn(self) -> None:
        """Warn once that nothing more is sent, from the training thread, which also draws the progress bar."""
        if self._failure and self._thread is not None:
            warnings.warn(
                f"The hook '{self.name}' has stopped sending reports: {self._failure}. The run continues, and "
                f"{FILE_NAME} has every report.",
                stacklevel=2,
            )
            self._thread = None

    def _work(self, queue: Queue[Any], reports: bool) -> None:
        record = self.directory / f"{self.package}.json"
        try:
            identifier = str(read_json(record)["id"]) if record.exists() else uuid.uuid4().hex
            if not re.fullmatch("[A-Za-z0-9]{1,64}", identifier):
                raise ValueError(f"{record} contains no valid run id")
            write_whole(record, json.dumps({"id": identifier}))
            sent = self.connect(identifier, reports)
            while isinstance(job := queue.get(), tuple):
                step, values = job
                if step > sent:
                    self.send(step, values)
                    sent = step
            job()
        except Exception as error:  # noqa: BLE001 - whatever a service raises, the run continues
            self._failure = one_line(f"{type(error).__name__}: {error}")[:200]
