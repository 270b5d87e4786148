"""One call of the command: what is done, what is to be made, which rows are kept. The runs are made as a sweep."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hookline.scripts.comparison.runs import number
from hookline.scripts.reproduction.jobs import Job, job_name, jobs_of
from hookline.scripts.reproduction.rows import (
    SCRIPTS,
    Conditions,
    Row,
    append_conditions,
    conditions_now,
    make_export,
    make_row,
    read_conditions,
)
from hookline.scripts.reproduction.table import TABLE, merge, read_results, render_short, write_results, write_table
from hookline.scripts.reproduction.targets import Target
from hookline.scripts.sweep.open import is_done, job_arguments, make_directory, quoted, unused
from hookline.scripts.sweep.record import FILE_NAME, Sweep, SweepJob, divide, read_summary, read_sweep
from hookline.scripts.sweep.run import SIGNALLED, TRAIN, SweepRun
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import preflight_each
from hookline.trainer.errors import UserError
from hookline.trainer.run.directory import locked
from hookline.trainer.run.results import format_seconds

TRY = re.compile(r"_try\d+$")
START_SECONDS = 8.0
"""What a run takes besides its training."""
Seconds = dict[tuple[str, str], float]
"""Of training, by the target that owns a variant, and the variant."""


@dataclass
class Session:
    """Hold what a call was asked to do."""

    targets: Mapping[str, Target]  # all
    chosen: Sequence[Target]  # of these
    seeds: tuple[int, ...] | None  # in place of the targets', or None
    places: Mapping[str, Path]  # of the data that was given
    results: Path  # path of results.json
    say: Callable[[str], None]
    own_targets: bool = False  # whether the targets are the user's, so that their command lines are checked first
    script: Path = TRAIN  # that each run is a process of
    scripts: Path = SCRIPTS  # folder with export.py and evaluate.py
    _sweep: Sweep = field(default_factory=lambda: Sweep(Path()))  # what the directory records; of other calls, too
    _jobs: dict[str, dict[str, Job]] = field(default_factory=dict)  # by target and name
    _recorded: dict[str, SweepJob] = field(default_factory=dict)  # by name
    _measured: Seconds = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)
    _faults: int = 0

    def look(self, out: Path) -> None:
        """Open a directory to see how the targets stand; nothing is written."""
        self._measured = _seconds_before(read_results(self.results), self.targets)
        self._sweep, self._recorded = _open(out), {}
        for target in self.chosen:
            self._jobs[target.name] = jobs_of(target, self.targets, self.seeds or target.seeds)
            if self.lacks(target) is None:
                for job in self._jobs[target.name].values():
                    self._record(job)

    def _record(self, job: Job) -> None:
        """Take a job into account; one that the directory records keeps its run."""
        if job.name in self._recorded:
            return
        jobs, overrides = self._sweep.jobs, list(job.overrides)
        known = [each for each in jobs if TRY.sub("", each.run) == job.name]
        first = max((self._recorded[name].number for name in job.needs.values()), default=0)
        # A run that is older than the one it begins from began from an earlier form of that.
        same = next((each for each in known if each.overrides == overrides and each.number > first), None)
        if same is None:
            same = SweepJob(len(jobs) + 1, overrides, unused(job.name, {each.run for each in known}.__contains__))
            jobs.append(same)
        self._recorded[job.name] = same

    def run(self, out: Path, at_once: int) -> int:
        """Make what is missing, keep the rows whose runs are all there, and return the exit code."""
        self.look(out)
        make_directory(out, "out=")
        with locked(out):
            self.look(out)  # again: another process may have ended since
            if self.own_targets:
                check(self._all_jobs())
            self._keep_not_run()
            self._settle()
            missing = self._missing()
            self.say(self._left(missing))
            code = self._make(missing, at_once) if missing else 0
        for target in self.chosen:
            self.say(f"{target.name}: {self.standing(target)}")
        self.say(f"runs: {out}; rows: {self.results}; table: {self.results.with_name(TABLE)}")
        return code if code > SIGNALLED else int(code > 0 or self._faults > 0)

    def _make(self, missing: Sequence[Job], at_once: int) -> int:
        """Make jobs and return the worst exit code; 128 and its number where a signal ended it."""
        # With one at a time, a run has all cores, as if it were typed; else each has its share.
        slots = divide(len(missing), at_once)
        self._sweep.threads = None if at_once == 1 else slots.threads
        self._sweep.write()
        waiting, going = list(missing), set[str]()
        begun: dict[int, Conditions] = {}

        def next_job() -> SweepJob | None:
            """Return the next job whose needs are complete; leave out those whose needs failed."""
            for job in waiting:
                if all(map(self.is_done, job.needs.values())):
                    waiting.remove(job)
                    going.add(job.name)
                    return self._recorded[job.name]
            if not going:
                for job in waiting:
                    first = next(name for name in job.needs.values() if not self.is_done(name))
                    self.say(f"left out: {job.name}, which begins from {first}")
                waiting.clear()
            return None

        def arguments(recorded: SweepJob) -> list[str]:
            begun[recorded.number] = conditions_now()  # a commit made meanwhile is not the run's
            return self._arguments(recorded)

        def ended(recorded: SweepJob) -> None:
            try:
                append_conditions(self._sweep.directory, recorded.run, begun[recorded.number])
            except OSError as error:
                self.say(f"Warning: the conditions of {recorded.run} cannot be written: {error.strerror}.")
            going.discard(TRY.sub("", recorded.run))
            self._settle()
            if left := self._missing():
                self.say(f"{len(left)} runs are left ({self._estimate(left)})")

        run = SweepRun(self._sweep, slots, next_job, arguments, lambda job: job.run, self.say, ended, self.script)
        return run.run()

    def _arguments(self, recorded: SweepJob) -> list[str]:
        """Return the arguments of a job's process: for a new run, or to resume one."""
        name = TRY.sub("", recorded.run)
        job = next(jobs[name] for jobs in self._jobs.values() if name in jobs)
        data = {name: quoted(self.places[name]) for name in job.data}
        filled = job.filled(data | {key: quoted(self._directory(name)) for key, name in job.needs.items()})
        copy = SweepJob(recorded.number, filled, recorded.run)
        threads = None if any(text.startswith("trainer.threads=") for text in filled) else self._sweep.threads
        arguments = job_arguments(self._sweep, copy, threads)
        recorded.run = copy.run
        if arguments[0].startswith("resume="):  # data may have moved since
            arguments += [text for text in filled if text.startswith("data.path=")]
        return arguments

    def _directory(self, name: str) -> Path:
        return self._sweep.run_directory(self._recorded[name])

    def is_done(self, name: str) -> bool:
        """Return whether a run is complete."""
        return is_done(self._sweep, self._recorded[name])

    def _all_jobs(self) -> list[Job]:
        able = [self._jobs[target.name] for target in self.chosen if self.lacks(target) is None]
        return list({name: job for jobs in able for name, job in jobs.items()}.values())

    def _missing(self) -> list[Job]:
        return [job for job in self._all_jobs() if not self.is_done(job.name)]

    def lacks(self, target: Target) -> str | None:
        """Return why a target cannot be run, or None."""
        missing = [f"{name}=<path>" for name in target.needs if name not in self.places]
        return f"needs {' and '.join(missing)}, which was not given" if missing else None

    def standing(self, target: Target) -> str:
        """Return how a target stands, in one line."""
        if (reason := self.lacks(target)) is not None:
            return f"not run: {reason}"
        jobs = self._jobs[target.name]
        left = [job for name, job in jobs.items() if not self.is_done(name)]
        text = f"{len(jobs) - len(left)} of {len(jobs)} runs done"
        return f"{text}, {self._estimate(left)} left" if left else text

    def _left(self, missing: Sequence[Job]) -> str:
        total = len(self._all_jobs())
        if not missing:
            return f"All {total} runs are done."
        return (
            f"{total - len(missing)} of {total} runs are done, {len(missing)} are left ({self._estimate(missing)}); "
            f"logs: {self._sweep.directory}/<number>.log"
        )

    def _estimate(self, jobs: Sequence[Job]) -> str:
        """Return how long jobs will take one after the other, by the complete runs here and the rows before."""
        here: dict[tuple[str, str], list[float]] = {}
        for job in self._all_jobs():
            seconds = number(read_summary(self._directory(job.name)).get("seconds"))
            if seconds is not None and self.is_done(job.name):
                here.setdefault(job.variant, []).append(seconds)
        known = self._measured | {variant: statistics.median(values) for variant, values in here.items()}
        found = [known[job.variant] + START_SECONDS for job in jobs if job.variant in known]
        if not found:
            return "time unknown"
        more = f", and {len(jobs) - len(found)} runs of unknown time" if len(found) < len(jobs) else ""
        return f"about {format_seconds(sum(found))}{more}"

    def _settle(self) -> None:
        """Keep the rows that have become complete."""
        for target in self.chosen:
            if target.name in self._settled or self.lacks(target) is not None:
                continue
            if not all(map(self.is_done, self._jobs[target.name])):
                continue
            self._settled.add(target.name)
            try:
                self._keep(target)
            except UserError as error:
                self._faults += 1
                self.say(f"{target.name}: no row. {error}")

    def _keep(self, target: Target) -> None:
        seeds = self.seeds or target.seeds
        for export in target.exports.values():
            for seed in seeds:
                make_export(self._directory(job_name(target.runs[export.run], seed)), export, self.scripts)
        noted = read_conditions(self._sweep.directory)
        conditions = {name: noted.get(job.run, []) for name, job in self._recorded.items()}
        row = make_row(target, self.targets, seeds, self._directory, conditions)
        self.say(render_short(row))
        if absent := [str(seed) for seed in target.seeds if seed not in seeds]:
            self.say(f"{target.name}: not kept in {self.results.name}: seed {', '.join(absent)} is not among the runs")
        else:
            self._write(row)

    def _keep_not_run(self) -> None:
        for target in self.chosen:
            if (reason := self.lacks(target)) is not None:
                self.say(f"{target.name}: not run: {reason}")
                facts = {key: getattr(target, key) for key in ("name", "title", "recipe", "data")}
                self._write({**facts, "not_run": reason})

    def _write(self, row: Row) -> None:
        before = read_results(self.results)
        rows = merge(before, row, list(self.targets))
        (write_table if rows == before else write_results)(self.results, rows)


def _open(directory: Path) -> Sweep:
    """Return the sweep of a directory; nothing is written."""
    if (directory / FILE_NAME).exists():
        return read_sweep(directory)
    try:
        if directory.exists() and any(not each.name.startswith(".") for each in directory.iterdir()):
            raise UserError(f"out={directory} holds files, but no {FILE_NAME}. Expected a new directory, or its own.")
    except OSError as error:
        raise UserError(f"out={directory} cannot be read: {error.strerror}. Give another out=.") from error
    return Sweep(directory)


def check(jobs: Iterable[Job]) -> None:
    """Compose the command lines of jobs, one for each variant."""
    chosen = {job.variant: job for job in reversed([*jobs])}.values()
    filled = {job.name: job.filled(dict.fromkeys((*job.data, *job.needs), "somewhere")) for job in chosen}
    try:
        preflight_each(Command(()), list(filled.values()))
    except UserError:
        for name, overrides in filled.items():  # which of them it is
            try:
                preflight_each(Command(()), [overrides])
            except UserError as error:
                raise UserError(f"{name}: {error}") from error
        raise


def _seconds_before(rows: Sequence[Row], targets: Mapping[str, Target]) -> Seconds:
    """Return the seconds that rows record."""
    found: Seconds = {}
    for row in rows:
        target = targets.get(row["name"])
        for name, seconds in row.get("seconds", {}).items():
            if target is not None and name in target.runs and number(seconds) is not None:
                found[target.runs[name].target, target.runs[name].name] = float(seconds)
    return found
