"""The runs that paths stand for: runs, sweeps, and directories with runs below them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.comparison.stored_run import StoredRun, is_run, read_run
from trainer.config.stored import recipe_name
from trainer.errors import UserError
from trainer.files import read_json
from trainer.user_path import user_path

SWEEP = "sweep.json"
SWEEP_VERSION = 1


@dataclass
class Found:
    """Collect what was found.

    Attributes:
        runs: those that could be read, each once.
        unreadable: why others could not, one line each.
    """

    runs: list[StoredRun] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def find_runs(paths: Sequence[str]) -> Found:
    """Return the runs that paths stand for.

    A damaged run that a path names is an error; one that is found below a directory or in a sweep is told of.

    Args:
        paths: of runs, of sweeps (directories with a sweep.json), or of directories that hold such.

    Raises:
        UserError: a path that does not exist or holds no run, or a run or sweep that is named and damaged.
    """
    found = Found()
    for text in paths:
        path = user_path(text, "runs")
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise UserError(f"{text} {what}. Expected the directory of a run, of a sweep, or one with runs below it.")
        if (path / SWEEP).exists():
            _add_sweep(path, found)
        elif is_run(path):
            found.runs.append(read_run(path))
        else:
            _add_below(path, found)
    found.runs = _each_once(found.runs)
    return found


def _add_below(top: Path, found: Found) -> None:
    before = len(found.runs) + len(found.unreadable)
    for directory in _walk(top):
        try:
            if (directory / SWEEP).exists():
                _add_sweep(directory, found)
            else:
                found.runs.append(read_run(directory))
        except UserError as error:
            found.unreadable.append(str(error))
    if len(found.runs) + len(found.unreadable) == before:
        raise UserError(f"{top} holds no run. Expected the directory of a run, of a sweep, or one with runs below it.")


def _walk(top: Path) -> Iterator[Path]:
    """Yield the runs and sweeps below a directory, in order; what lies within them is theirs."""
    for folder, inner, files in os.walk(top):
        here = Path(folder)
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if SWEEP in files or is_run(here):
            inner.clear()
            yield here


def _each_once(runs: Sequence[StoredRun]) -> list[StoredRun]:
    places = {run.directory.resolve() if run.directory else index: run for index, run in reversed([*enumerate(runs)])}
    return [run for run in runs if any(run is kept for kept in places.values())]


def _add_sweep(directory: Path, found: Found) -> None:
    for job in _read_jobs(directory / SWEEP):
        try:
            found.runs.append(_job(job, directory))
        except UserError as error:
            found.unreadable.append(f"job {job['number']}: {error}")


def _read_jobs(path: Path) -> list[dict[str, Any]]:
    try:
        sweep = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: it is damaged. Expected what a sweep writes.") from error
    version = sweep.get("version") if isinstance(sweep, dict) else None
    if version != SWEEP_VERSION:
        raise UserError(f"{path} is of version {version}. Expected version {SWEEP_VERSION}.")
    jobs = sweep.get("jobs")
    if not isinstance(jobs, list) or not all(_is_job(job) for job in jobs):
        raise UserError(f"{path} has jobs without number, overrides, run or status. Expected what a sweep writes.")
    return jobs


def _is_job(job: Any) -> bool:
    return (
        isinstance(job, dict)
        and isinstance(job.get("number"), int)
        and isinstance(job.get("overrides"), list)
        and all(isinstance(each, str) for each in job["overrides"])
        and isinstance(job.get("run"), str | None)
        and isinstance(job.get("status"), str)
    )


def _job(job: dict[str, Any], sweep: Path) -> StoredRun:
    """Return the run of a job. Of how it ended the run's own summary knows best; where it has none, the sweep does."""
    code = job.get("exit_code")
    status = job["status"] if not code else f"{job['status']} (exit code {code})"
    directory = sweep / job["run"] if job["run"] else None
    if directory is None or not directory.is_dir():
        overrides = tuple(job["overrides"])
        recipes = [each.partition("=")[2] for each in overrides if each.startswith("recipe=")]
        recipe = recipe_name(recipes[0]) if recipes else ""
        return StoredRun(f"job {job['number']}", recipe, overrides, status=status)
    run = replace(read_run(directory, f"job {job['number']}, {directory}"), overrides=tuple(job["overrides"]))
    return run if run.is_complete else replace(run, status=status)
