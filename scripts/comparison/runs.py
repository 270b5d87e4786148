"""Runs to compare, read from their directories."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hookline.scripts.sweep.record import FILE_NAME as SWEEP_FILE
from hookline.scripts.sweep.record import SweepJob, read_sweep
from hookline.trainer.config.schema import lookup
from hookline.trainer.config.stored import (
    FILE_NAME,
    OVERRIDES,
    PYTHON,
    overridden_key,
    read_overrides,
    read_stored,
    recipe_name,
    recipe_of,
)
from hookline.trainer.errors import UserError, unknown_name, user_path
from hookline.trainer.files import read_json
from hookline.trainer.run.results import COMPLETE, is_metric, is_total_loss, short_name

SUMMARY = "summary.json"
UNFINISHED = "unfinished"
"""The status of a run without a summary: it is running, or its process was killed."""
NUMBERS = ("seconds", "params.total", "bytes.deployed")
"""Entries of summary.json that are compared."""
SPLITS = {"train": "final", "validation": "best.values", "test": "test"}
"""Where summary.json has the values of each split."""


@dataclass(frozen=True)
class StoredRun:
    """Hold what is known about a run."""

    name: str  # to show: its directory, or the number of its job
    recipe: str  # the recipe's name
    overrides: tuple[str, ...]  # of its command line
    # resolved; empty if the run did not get far enough to have one
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)  # contents of its summary.json; empty if it has none
    status: str = UNFINISHED  # as in summary.json or sweep.json; "unfinished" if neither has it
    directory: Path | None = None  # None if it has none
    written: float = 0.0  # when its summary was written, in seconds since the epoch

    @property
    def is_complete(self) -> bool:
        """Return whether the run trained all its steps, or was ended for good by a hook."""
        return self.status in COMPLETE and bool(self.summary)

    @property
    def seed(self) -> int | None:
        """Return the seed; None if no config is known."""
        return self.config.get("seed")

    def value(self, split: str, name: str) -> float | None:
        """Return a metric of the summary; None if it was not measured, or is not a finite number."""
        return number(self.values(split).get(name))

    def values(self, split: str) -> Mapping[str, Any]:
        """Return all values that the summary has for a split, by name."""
        part = lookup(self.summary, SPLITS.get(split, split))
        return part if isinstance(part, Mapping) else {}


def number(value: Any) -> float | None:
    """Return a value that a file holds as a finite number, or None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def is_sweep(directory: Path) -> bool:
    """Return whether a directory is that of a sweep."""
    return (directory / SWEEP_FILE).exists()


def read_run(directory: Path, name: str | None = None) -> StoredRun:
    """Read a run from its directory."""
    try:
        config = read_stored(str(directory), "run")
        if lookup(config, "task._target_") == PYTHON:
            raise UserError(f"{directory} was trained from Python. Expected a run of the command line.")
        recipe = recipe_of(str(directory), "run")
    except UserError as error:
        raise UserError(str(error).removeprefix("run=")) from error  # a path that the user named directly
    if not isinstance(lookup(config, "trainer.monitor"), str) or not isinstance(config.get("seed"), int):
        raise UserError(f"{directory}/{FILE_NAME} is of another format: it lacks seed or trainer.monitor.")
    path, summary = directory / SUMMARY, {}
    if path.exists():
        try:
            summary = read_json(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: it is damaged. Expected what train.py writes.") from error
        lacking = [place for place in NUMBERS if number(lookup(summary, place)) is None]
        kinds = {"status": str, "best": Mapping, "test": Mapping}
        lacking += [key for key, kind in kinds.items() if not isinstance(lookup(summary, key), kind)]
        if lacking:
            raise UserError(f"{path} is of another format: it lacks {', '.join(lacking)}.")
    return StoredRun(
        name=str(directory) if name is None else name,
        recipe=recipe,
        overrides=tuple(read_overrides(directory)),
        config=config,
        summary=summary,
        status=summary.get("status", UNFINISHED),
        directory=directory,
        written=path.stat().st_mtime if summary else 0.0,
    )


@dataclass(frozen=True)
class Metric:
    """Name a metric to compare."""

    split: str  # "train" (the last report), "validation" (the best evaluation) or "test"
    name: str  # such as "metric/accuracy"
    direction: str | None = None  # "max" or "min": which values are better; None if unknown

    @property
    def label(self) -> str:
        """Return a readable name, such as "test accuracy"."""
        return f"{self.split} {short_name(self.name)}"

    def of(self, run: StoredRun) -> float | None:
        return run.value(self.split, self.name)


def choose_metrics(asked: str | None, runs: Sequence[StoredRun]) -> list[Metric]:
    """Return the requested metrics; by default those of the test split, or its total losses if it has none."""
    if asked is not None and runs:  # without measurements, a request cannot be wrong
        return list(dict.fromkeys(_parse(part.strip(), runs) for part in asked.strip("[] ").split(",")))
    names = dict.fromkeys(name for run in runs for name in run.values("test"))
    chosen = [name for name in names if is_metric(name)] or [name for name in names if is_total_loss(name)]
    return [Metric("test", name, direction_of(name, runs)) for name in chosen]


def _parse(text: str, runs: Sequence[StoredRun]) -> Metric:
    split, separator, rest = text.partition("/")
    if not separator or split not in SPLITS:
        split, rest = "test", text
    values = [run.values(split) for run in runs]
    names = list(dict.fromkeys(name for each in values for name in each if number(each[name]) is not None))
    for name in names:
        if rest in (name, short_name(name)):
            return Metric(split, name, direction_of(name, runs))
    raise unknown_name(f"metric of the {split} split", rest, names)


def direction_of(name: str, runs: Iterable[StoredRun]) -> str | None:
    """Return which values of a metric are better: "max", "min", or None if neither its name nor a monitor tells."""
    last = name.rpartition("/")[2]
    if name.startswith("loss/") or "/loss/" in name:
        return "min"
    if last == "accuracy":
        return "max"
    modes = {monitor_of(run)[1] for run in runs if monitor_of(run)[0] == name}
    return modes.pop() if len(modes) == 1 else None


def monitor_of(run: StoredRun) -> tuple[str, str]:
    """Return the metric of the validation split by which a run selected its best step, and "max" or "min"."""
    trainer = {**run.config.get("trainer", {}), **(run.summary.get("best") or {})}
    return str(trainer.get("monitor", "")), str(trainer.get("mode", trainer.get("monitor_mode", "max")))


def find_runs(paths: Sequence[str]) -> tuple[list[StoredRun], list[str]]:
    """Return the runs at or below paths, each once, and why others could not be read, one line each.

    A damaged run or sweep is an error only if a path names it directly.
    """
    runs: dict[Any, StoredRun] = {}
    unreadable: list[str] = []
    for text in paths:
        path = user_path(text, "runs")
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise UserError(f"{text} {what}. Expected the directory of a run, of a sweep, or one with runs below it.")
        found: list[StoredRun | str] = []
        for directory in _walk(path):
            try:
                found += _sweep_runs(directory) if is_sweep(directory) else [read_run(directory)]
            except UserError as error:
                if directory == path:
                    raise
                found.append(str(error))
        if not found and not is_sweep(path):
            raise UserError(f"{path} holds no run. Expected the directory of a run or a sweep, or one above them.")
        unreadable += [each for each in found if isinstance(each, str)]
        for run in (each for each in found if isinstance(each, StoredRun)):
            runs.setdefault(run.directory.resolve() if run.directory else id(run), run)
    return list(runs.values()), unreadable


def _walk(top: Path) -> Iterator[Path]:
    """Yield a directory, or the runs and sweeps below it, in order, without descending into them."""
    for folder, inner, _ in os.walk(top):
        here = Path(folder)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if is_sweep(here) or all((here / name).is_file() for name in (FILE_NAME, OVERRIDES)):
            inner.clear()
            yield here


def _sweep_runs(directory: Path) -> Iterator[StoredRun | str]:
    """Yield the runs of a sweep, or the reason for each that cannot be read."""
    sweep = read_sweep(directory)
    set_here = {"run_dir", "trainer.threads"} - {overridden_key(text) for text in sweep.space}
    for path in sorted(directory.glob(f"*/{OVERRIDES}")) if sweep.study else ():  # trials are listed only in the study
        try:
            run = read_run(path.parent)
            yield replace(run, overrides=tuple(text for text in run.overrides if overridden_key(text) not in set_here))
        except UserError as error:
            yield str(error)
    for job in sweep.jobs:
        try:
            yield _run_of(job, directory)
        except UserError as error:
            yield f"job {job.number}: {error}"


def _run_of(job: SweepJob, sweep: Path) -> StoredRun:
    """Return the run of a job, with the status of its own summary if it is complete, otherwise that of the sweep."""
    status = f"{job.status} (exit code {job.exit_code})" if job.exit_code else job.status
    directory, overrides = sweep / job.run, tuple(job.overrides)
    if not directory.is_dir():
        recipe = next((recipe_name(each.partition("=")[2]) for each in overrides if each.startswith("recipe=")), "")
        return StoredRun(f"job {job.number}", recipe, overrides, status=status)
    run = replace(read_run(directory, f"job {job.number}, {directory}"), overrides=overrides)
    return run if run.is_complete else replace(run, status=status)
