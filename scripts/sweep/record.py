"""The record of a sweep."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hookline.trainer.errors import UserError
from hookline.trainer.files import open_lock, read_json, write_whole
from hookline.trainer.run.directory import usable_cores
from hookline.trainer.run.results import COMPLETE, read_summary

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Slots:
    """Hold the slots for jobs that run at once."""

    environments: tuple[Mapping[str, str], ...]  # environment variables for the job in each slot
    threads: int  # CPU threads of each job

    def __len__(self) -> int:
        return len(self.environments)


def divide(jobs: int, asked: int | None = None, *, spread: bool = False) -> Slots:
    """Return at most `jobs` slots: `asked`, or else one per GPU, or one in all if a job spreads, or one per core."""
    cores, gpus = usable_cores(), usable_gpus()
    fitting = (1 if spread else len(gpus)) if gpus else cores
    count = max(1, min(jobs, asked or fitting))
    environments: list[dict[str, str]] = [{} for _ in range(count)]
    for place, environment in enumerate(environments):
        if gpus and not spread:
            environment[VISIBLE] = gpus[place % len(gpus)]
        if gpus and count > fitting:  # several jobs share a GPU
            environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    return Slots(tuple(environments), max(1, cores // count))


def usable_gpus(command: str = "nvidia-smi") -> tuple[str, ...]:
    """Return the GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES; empty if there are none."""
    if (named := os.environ.get(VISIBLE)) is not None:
        names = [name.strip() for name in named.split(",")]
        return tuple(name for name in names if name and not name.startswith("-"))
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    count = sum(line.startswith("GPU ") for line in listed.splitlines())
    return tuple(str(number) for number in range(count))


FILE_NAME, LOCK, VERSION = "sweep.json", ".record", 1
WAITING, RUNNING, FAILED, INTERRUPTED = "waiting", "running", "failed", "interrupted"
STATUSES = (WAITING, RUNNING, *COMPLETE, FAILED, INTERRUPTED)


@dataclass
class SweepJob:
    """Hold one job of a sweep."""

    number: int  # from 1, in the order of the command line
    overrides: list[str]  # as the user wrote them, one value each
    run: str  # the run directory: absolute, or relative to the sweep's
    status: str = WAITING  # one of `STATUSES`
    exit_code: int | None = None  # of the latest process; None while there is none
    seconds: float = 0.0  # wall time of all its processes


@dataclass
class Sweep:
    """Hold a sweep as its directory records it."""

    directory: Path
    jobs: list[SweepJob] = field(default_factory=list)  # in order; empty for a search, which has trials in its study
    flags: list[str] = field(default_factory=list)  # passed to each job, such as ["--config-dir", "mine"]
    threads: int | None = None  # of each job, unless its overrides set them; None before the sweep begins
    trials: int | None = None  # number of jobs of a search; None if the jobs are a grid
    space: list[str] = field(default_factory=list)  # overrides of a search, as the user wrote them
    study: str | None = None  # name of a search's study in its storage; None for a grid

    def summary(self, job: SweepJob) -> dict[str, Any]:
        """Return the contents of summary.json of a job's run; empty if it cannot be read."""
        return read_summary(self.directory / job.run)

    def log(self, job: SweepJob, worker: int = 0) -> Path:
        """Return the file for the output of a job's processes."""
        return self.directory / f"{of_worker(job.number, worker)}.log"

    def write(self) -> None:
        """Write sweep.json atomically, by a temporary name."""
        content = {"version": VERSION, **{name: value for name, value in asdict(self).items() if name != "directory"}}
        write_whole(self.directory / FILE_NAME, json.dumps(content, indent=2))


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the lock of a sweep's record: wait for other processes that change it, and make others wait."""
    descriptor = open_lock(directory / LOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def record(sweep: Sweep, job: SweepJob) -> None:
    """Write the current state of a job into the record of its sweep; other jobs keep their entries."""
    with exclusive(sweep.directory):
        recorded = read_sweep(sweep.directory)
        jobs = {each.number: each for each in recorded.jobs} | {job.number: job}
        recorded.jobs = [jobs[number] for number in sorted(jobs)]
        recorded.write()


def of_worker(number: int, worker: int) -> str:
    """Return the base name of a job's files; each worker of its run has its own."""
    return f"{number:02}.{worker}" if worker else f"{number:02}"


def claim(directory: Path, number: int, worker: int = 0) -> int | None:
    """Lock a job and return the lock's descriptor; None while a process holds it or inherited it from another claim."""
    descriptor = open_lock(directory / f".{of_worker(number, worker)}.lock")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def read_sweep(directory: Path) -> Sweep:
    """Return the sweep that a directory records."""
    path = directory / FILE_NAME
    try:
        content = read_json(path)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}, not {VERSION}")
        others = {name: content[name] for name in content.keys() & Sweep.__dataclass_fields__.keys() - {"directory"}}
        others["jobs"] = [SweepJob(**each) for each in others["jobs"]]
        for job in others["jobs"]:
            texts: Any = [job.run, *job.overrides]  # a file may hold anything
            if not all(isinstance(each, str) for each in texts) or job.status not in STATUSES:
                raise ValueError(f"job {job.number}")
        return Sweep(directory, **others)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read as a sweep ({type(error).__name__}: {error}).") from error
