"""The runs of targets, made as a sweep."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hookline.scripts.comparison.runs import number
from hookline.scripts.reproduction.rows import Job, Row, Watch, append
from hookline.scripts.reproduction.targets import Target
from hookline.scripts.sweep.open import is_done, job_arguments, quoted
from hookline.scripts.sweep.record import (
    FILE_NAME,
    Sweep,
    SweepJob,
    divide,
    read_summary,
    read_sweep,
    usable_cores,
    usable_gpus,
)
from hookline.scripts.sweep.run import TRAIN, SweepRun
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import preflight_each
from hookline.trainer.errors import UserError
from hookline.trainer.run.results import format_seconds

Say = Callable[[str], None]
TRY = re.compile(r"_try\d+$")
RESUME = "resume="


@dataclass
class Runs:
    """Hold the runs of a directory, of which those are made that are missing.

    Attributes:
        sweep: what the directory records; jobs of other commands, too.
        places: of data, by name.
        say: shows a line.
        script: that each job runs.
    """

    sweep: Sweep
    places: Mapping[str, Path]
    say: Say
    script: Path = TRAIN
    _by_name: dict[str, SweepJob] = field(default_factory=dict)
    _jobs: dict[str, Job] = field(default_factory=dict)

    def add(self, jobs: Iterable[Job]) -> None:
        """Take jobs into account; those that the directory records keep their run."""
        for job in jobs:
            if job.name in self._jobs:
                continue
            self._jobs[job.name] = job
            known = [each for each in self.sweep.jobs if TRY.sub("", each.run) == job.name]
            same = [each for each in known if each.overrides == list(job.overrides)]
            if not same:
                taken = {each.run for each in known}
                count = len(self.sweep.jobs) + 1
                same = [SweepJob(count, list(job.overrides), _unused(job.name, taken))]
                self.sweep.jobs.append(same[0])
            self._by_name[job.name] = same[0]

    def directory(self, name: str) -> Path:
        """Return where a run lies."""
        return self.sweep.run_directory(self._by_name[name])

    def recorded(self, name: str) -> SweepJob:
        """Return what the sweep records of a job."""
        return self._by_name[name]

    def is_done(self, name: str) -> bool:
        """Return whether a run is complete."""
        return is_done(self.sweep, self._by_name[name])

    def jobs(self) -> list[Job]:
        """Return all jobs, in order."""
        return [*self._jobs.values()]

    def missing(self) -> list[Job]:
        """Return the jobs that are not complete, in order."""
        return [job for job in self._jobs.values() if not self.is_done(job.name)]

    def make(self, at_once: int, ended: Callable[[], None]) -> int:
        """Make what is missing and return the worst exit code; 128 and its number where a signal ended it."""
        missing = self.missing()
        # With one at a time, a run has all cores, as if it were typed; else each has its share.
        places = divide(max(1, len(missing)), at_once, usable_cores(), usable_gpus())
        self.sweep.threads = None if at_once == 1 else places.threads
        self.sweep.write()
        watch = Watch()
        supply = _Supply(self, missing)

        def arguments(recorded: SweepJob) -> list[str]:
            watch.begin(recorded.number)
            return self._arguments(recorded)

        def note(recorded: SweepJob) -> None:
            try:
                append(self.sweep.directory, watch.end(recorded.number, recorded.run))
            except OSError as error:
                self.say(f"Warning: the conditions of {recorded.run} cannot be written: {error.strerror}.")
            supply.ended(recorded)
            ended()

        run = SweepRun(
            self.sweep,
            places,
            next_job=supply,
            arguments=arguments,
            label=lambda recorded: recorded.run,
            say=self.say,
            ended=note,
            script=self.script,
        )
        return run.run() if missing else 0

    def _arguments(self, recorded: SweepJob) -> list[str]:
        """Return the arguments of a job's process: for a new run, or to resume one."""
        job = self._jobs[TRY.sub("", recorded.run)]
        data = {name: quoted(self.places[name]) for name in job.data}
        filled = job.filled(data | {key: quoted(self.directory(name)) for key, name in job.needs.items()})
        copy = SweepJob(recorded.number, filled, recorded.run)
        threads = None if any(text.startswith("trainer.threads=") for text in filled) else self.sweep.threads
        arguments = job_arguments(self.sweep, copy, threads)
        recorded.run = copy.run
        if arguments[0].startswith(RESUME):  # data may have moved since
            arguments += [text for text in filled if text.startswith("data.path=")]
        return arguments


class _Supply:
    """Give the next job whose needs are complete; leave out those whose needs failed."""

    def __init__(self, runs: Runs, missing: Iterable[Job]) -> None:
        self._runs, self._waiting = runs, list(missing)
        self._going: set[str] = set()

    def __call__(self) -> SweepJob | None:
        for job in self._waiting:
            if all(self._runs.is_done(name) for name in job.needs.values()):
                self._waiting.remove(job)
                self._going.add(job.name)
                return self._runs.recorded(job.name)
        if not self._going:
            for job in self._waiting:
                first = next(name for name in job.needs.values() if not self._runs.is_done(name))
                self._runs.say(f"left out: {job.name}, which begins from {first}")
            self._waiting.clear()
        return None

    def ended(self, recorded: SweepJob) -> None:
        self._going.discard(TRY.sub("", recorded.run))


def open_runs(directory: Path, places: Mapping[str, Path], say: Say, script: Path = TRAIN) -> Runs:
    """Return the runs of a directory; nothing is written."""
    if (directory / FILE_NAME).exists():
        return Runs(read_sweep(directory), places, say, script)
    try:
        if directory.exists() and any(not each.name.startswith(".") for each in directory.iterdir()):
            raise UserError(f"out={directory} holds files, but no {FILE_NAME}. Expected a new directory, or its own.")
    except OSError as error:
        raise UserError(f"out={directory} cannot be read: {error.strerror}. Give another out=.") from error
    return Runs(Sweep(directory), places, say, script)


def check(jobs: Collection[Job]) -> None:
    """Compose the command lines of jobs, one for each variant."""
    by_variant = {job.variant: job for job in reversed([*jobs])}
    filled = {job.name: job.filled(dict.fromkeys((*job.data, *job.needs), "somewhere")) for job in by_variant.values()}
    try:
        preflight_each(Command(()), [*filled.values()])
    except UserError:
        for name, overrides in filled.items():
            try:
                preflight_each(Command(()), [overrides])
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
        raise


def _unused(name: str, taken: Collection[str]) -> str:
    tries = 2
    found = name
    while found in taken:
        found, tries = f"{name}_try{tries}", tries + 1
    return found


START_SECONDS = 8.0
"""What a run takes besides its training."""
Seconds = dict[tuple[str, str], float]
"""Of training, by the target that owns a variant, and the variant."""


def estimate(jobs: Sequence[Job], known: Mapping[tuple[str, str], float]) -> str:
    """Return how long jobs will take one after the other, as text."""
    seconds = [known[job.variant] + START_SECONDS for job in jobs if job.variant in known]
    if not seconds:
        return "time unknown"
    unknown = len(jobs) - len(seconds)
    more = f", and {unknown} runs of unknown time" if unknown else ""
    return f"about {format_seconds(sum(seconds))}{more}"


def seconds_here(runs: Runs) -> Seconds:
    """Return the median seconds of the runs that are complete."""
    found: dict[tuple[str, str], list[float]] = {}
    for job in runs.jobs():
        seconds = number(read_summary(runs.directory(job.name)).get("seconds"))
        if seconds is not None and runs.is_done(job.name):
            found.setdefault(job.variant, []).append(seconds)
    return {variant: statistics.median(values) for variant, values in found.items()}


def seconds_before(rows: Sequence[Row], targets: Mapping[str, Target]) -> Seconds:
    """Return the seconds that rows record."""
    found: Seconds = {}
    for row in rows:
        target = targets.get(row["name"])
        for name, seconds in row.get("seconds", {}).items():
            if target is not None and name in target.runs and number(seconds) is not None:
                found[target.runs[name].target, target.runs[name].name] = float(seconds)
    return found
