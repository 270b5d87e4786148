"""One call of the command: which runs are done, which are made, which rows are kept.

Nothing is recorded but the runs themselves: a run belongs to a job if it has the job's name and its command line.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hookline.scripts.reproduction.jobs import Job, job_name, jobs_of
from hookline.scripts.reproduction.rows import (
    SCRIPTS,
    Conditions,
    append_conditions,
    conditions_now,
    make_export,
    make_row,
    read_conditions,
)
from hookline.scripts.reproduction.table import TABLE, merge, read_results, render_short, write_results, write_table
from hookline.scripts.reproduction.targets import Target
from hookline.scripts.sweep.open import CAN_GO_ON, make_directory, quoted
from hookline.scripts.sweep.record import divide, is_complete, read_summary
from hookline.scripts.sweep.run import TETHER, TRAIN, describe_best
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import preflight_each
from hookline.trainer.config.stored import FILE_NAME as RUN_CONFIG
from hookline.trainer.config.stored import read_overrides
from hookline.trainer.errors import UserError
from hookline.trainer.files import open_append, open_file
from hookline.trainer.run.directory import LOCK, locked

POLL_SECONDS = 0.05
ANY = "\0"
"""Stands for any text of an override."""
OURS = ("run_dir=", "trainer.threads=")
"""Overrides that this command adds."""


@dataclass
class _Process:
    """A run in progress."""

    job: Job
    directory: Path
    log: Path
    process: subprocess.Popen[bytes]
    conditions: Conditions


@dataclass
class Session:
    """What a call was asked to do."""

    out: Path  # directory of the runs
    targets: Mapping[str, Target]  # all
    chosen: Sequence[Target]  # of these
    seeds: tuple[int, ...] | None  # in place of the targets', or None
    places: Mapping[str, Path]  # of the data that was given
    results: Path  # path of results.json
    say: Callable[[str], None]
    own_targets: bool = False  # whether the targets are the user's, so that their command lines are checked first
    script: Path = TRAIN  # that each run is a process of
    scripts: Path = SCRIPTS  # folder with export.py and evaluate.py
    _settled: set[str] = field(default_factory=set)  # names of targets
    _failed: bool = False

    def __post_init__(self) -> None:
        """List the runs of each target."""
        self._jobs = {each.name: jobs_of(each, self.targets, self.seeds or each.seeds) for each in self.chosen}
        self._all = {name: job for jobs in self._jobs.values() for name, job in jobs.items()}
        able = [self._jobs[target.name] for target in self.chosen if self._lacks(target) is None]
        self._able = list({name: job for jobs in able for name, job in jobs.items()}.values())

    def run(self, at_once: int) -> int:
        """Make what is missing, keep the rows whose runs are all there, and return the exit code."""
        make_directory(self.out, "out=")
        names = {each.name for each in self.out.iterdir()}
        if names and LOCK not in names:
            raise UserError(
                f"out={self.out} holds files, but no {LOCK}. Expected a new directory, or one made by this."
            )
        with locked(self.out):
            if self.own_targets:
                check(self._able)
            self._keep_not_run()
            self._settle()
            missing = self._missing()
            self.say(f"{len(self._able) - len(missing)} of {len(self._able)} runs are done.")
            if missing:
                self._make(missing, at_once)
        for target in self.chosen:
            self.say(f"{target.name}: {self.standing(target)}")
        self.say(f"runs: {self.out}; rows: {self.results}; table: {self.results.with_name(TABLE)}")
        return int(self._failed)

    def _tries(self, name: str) -> tuple[Path | None, Path]:
        """Return the latest run that was made by a job's command line, and a free place for another one."""
        job = self._all[name]
        places = dict.fromkeys(job.data, ANY)  # data may have moved since
        places |= {key: f"{ANY}{self._directory(needed).relative_to(self.out)}" for key, needed in job.needs.items()}
        expected = [re.escape(text.rstrip("'")).replace(ANY, ".*") for text in job.filled(places)]
        found, path, number_of_try = None, self.out / name, 1
        while path.exists():
            given = [text.rstrip("'") for text in read_overrides(path) if not text.startswith(OURS)]
            if len(given) == len(expected) and all(map(re.fullmatch, expected, given)):
                found = path
            number_of_try += 1
            path = self.out / f"{name}_try{number_of_try}"
        return found, path

    def _directory(self, name: str) -> Path:
        """Return where the run of a job is, or will be."""
        found, free = self._tries(name)
        return found or free

    def is_done(self, name: str) -> bool:
        """Return whether a run is complete."""
        return is_complete(read_summary(self._directory(name)))

    def _make(self, missing: Sequence[Job], at_once: int) -> None:
        """Make runs, as soon as those that they begin from are complete."""
        slots = divide(len(missing), at_once)
        threads = [] if at_once == 1 else [f"trainer.threads={slots.threads}"]  # one at a time has all cores
        waiting, running = list(missing), dict[int, _Process]()
        tether, held = os.pipe()  # the processes end when this one does
        try:
            while True:
                for place, process in list(running.items()):
                    if process.process.poll() is not None:
                        del running[place]
                        self._end(process)
                free = [place for place in range(len(slots)) if place not in running]
                ready = [job for job in waiting if free and all(map(self.is_done, job.needs.values()))]
                for place, job in zip(free, ready, strict=False):
                    waiting.remove(job)
                    running[place] = self._start(job, threads, tether, slots.environments[place])
                if not running:
                    break
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:  # the processes got it, too
            for process in running.values():
                process.process.wait()
            raise
        finally:
            os.close(tether)
            os.close(held)
        for job in waiting:
            first = next(name for name in job.needs.values() if not self.is_done(name))
            self.say(f"left out: {job.name}, which begins from {first}")

    def _start(self, job: Job, threads: Sequence[str], tether: int, environment: Mapping[str, str]) -> _Process:
        places = {name: quoted(self.places[name]) for name in job.data}
        filled = job.filled(places | {key: quoted(self._directory(name)) for key, name in job.needs.items()})
        found, free = self._tries(job.name)
        if found is not None and (found / RUN_CONFIG).is_file() and read_summary(found).get("status") in CAN_GO_ON:
            directory = found
            moved = [text for text in filled if text.startswith("data.path=")]
            arguments = [f"resume={quoted(directory)}", *moved]
        else:
            directory = free
            own = [] if any(text.startswith("trainer.threads=") for text in filled) else threads
            arguments = [*filled, f"run_dir={quoted(directory)}", *own]
        log = directory.with_name(f"{directory.name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        conditions = conditions_now()
        with open_append(log) as file:
            file.write(f"$ {shlex.join(['python', self.script.name, *arguments])}\n".encode())
            process = subprocess.Popen(
                [sys.executable, str(TETHER), str(tether), str(self.script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(tether,),
                env={**os.environ, **environment},
            )
        what = "resumed" if directory is found else "started"
        self.say(f"{what}: {directory.relative_to(self.out)} ({len(self._missing())} runs are left)")
        return _Process(job, directory, log, process, conditions)

    def _end(self, ended: _Process) -> None:
        name, summary = ended.directory.relative_to(self.out), read_summary(ended.directory)
        append_conditions(self.out, str(name), ended.conditions)
        if is_complete(summary) and ended.process.returncode == 0:
            self.say(f"completed: {name}: {describe_best(summary)}{summary['seconds']:.1f} s")
        else:
            self._failed = True
            with open_file(ended.log) as file:
                last = file.read().decode(errors="replace").strip().rpartition("\n")[2]
            self.say(f"failed: {name}: {last} (exit code {ended.process.returncode}). Log: {ended.log}")
        self._settle()

    def _missing(self) -> list[Job]:
        return [job for job in self._able if not self.is_done(job.name)]

    def _lacks(self, target: Target) -> str | None:
        """Return why a target cannot be run, or None."""
        missing = [f"{name}=<path>" for name in target.needs if name not in self.places]
        return f"needs {' and '.join(missing)}, which was not given" if missing else None

    def standing(self, target: Target) -> str:
        """Return how a target stands, in one line."""
        if (reason := self._lacks(target)) is not None:
            return f"not run: {reason}"
        jobs = self._jobs[target.name]
        return f"{sum(map(self.is_done, jobs))} of {len(jobs)} runs done"

    def _settle(self) -> None:
        """Keep the rows that have become complete."""
        for target in self.chosen:
            if target.name in self._settled or self._lacks(target) is not None:
                continue
            if not all(map(self.is_done, self._jobs[target.name])):
                continue
            self._settled.add(target.name)
            try:
                self._keep(target)
            except UserError as error:
                self._failed = True
                self.say(f"{target.name}: no row. {error}")

    def _keep(self, target: Target) -> None:
        seeds = self.seeds or target.seeds
        for export in target.exports.values():
            for seed in seeds:
                make_export(self._directory(job_name(target.runs[export.run], seed)), export, self.scripts)
        noted = read_conditions(self.out)
        conditions = {name: noted.get(str(self._directory(name).relative_to(self.out)), []) for name in self._all}
        row = make_row(target, self.targets, seeds, self._directory, conditions)
        self.say(render_short(row))
        if absent := [str(seed) for seed in target.seeds if seed not in seeds]:
            self.say(f"{target.name}: not kept in {self.results.name}: seed {', '.join(absent)} is not among the runs")
        else:
            self._write(row)

    def _keep_not_run(self) -> None:
        for target in self.chosen:
            if (reason := self._lacks(target)) is not None:
                self.say(f"{target.name}: not run: {reason}")
                facts = {key: getattr(target, key) for key in ("name", "title", "recipe", "data")}
                self._write({**facts, "not_run": reason})

    def _write(self, row: dict[str, object]) -> None:
        before = read_results(self.results)
        rows = merge(before, row, list(self.targets))
        (write_table if rows == before else write_results)(self.results, rows)


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
