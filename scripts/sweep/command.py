"""The command of a sweep."""

from __future__ import annotations

import fcntl
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from hookline.scripts.comparison.comparison import compare
from hookline.scripts.comparison.report import print_comparison
from hookline.scripts.comparison.runs import find_runs
from hookline.scripts.sweep.open import (
    OpenSweep,
    added_threads,
    command_of,
    is_done,
    job_arguments,
    make_directory,
    new_job,
    open_sweep,
    own_overrides,
)
from hookline.scripts.sweep.record import (
    FAILED,
    Slots,
    Sweep,
    SweepJob,
    divide,
    is_complete,
    read_summary,
    read_sweep,
    record,
)
from hookline.scripts.sweep.run import TRAIN, SweepRun, describe_best
from hookline.scripts.sweep.search import Search
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import Job, preflight_each
from hookline.trainer.errors import UserError
from hookline.trainer.files import open_lock, write_whole
from hookline.trainer.replicas.cluster import MULTI_WORKER, NONE
from hookline.trainer.run.directory import locked


class SweepTask:
    """Run a job from wherever its run is: from its start, from a checkpoint, or not at all if it is complete.

    So a task may be submitted twice; nothing is made twice.
    """

    def __init__(self, directory: Path, number: int, place: Path, script: Path = TRAIN) -> None:
        """Name the job."""
        self._named = (directory, number, place, script)
        self._run: SweepRun | None = None

    def __call__(self) -> int:
        """Run the job and return its exit code."""
        directory, number, place, script = self._named
        os.chdir(place)
        descriptor = open_lock(directory / f".{number:02}.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._once(directory, number, script)
        except BlockingIOError:
            _say(f"Job {number} runs already, by another task.")
            return 0
        finally:
            os.close(descriptor)

    def _once(self, directory: Path, number: int, script: Path) -> int:
        sweep = read_sweep(directory)
        job = next(each for each in sweep.jobs if each.number == number)
        if is_done(sweep, job):
            job.status = str(read_summary(sweep.run_directory(job))["status"])
            record(sweep, job)
            _say(f"Job {number} is complete: nothing is left to do.")
            return 0
        (checked,) = preflight_each(command_of(sweep), [job.overrides])
        self._run = listed_run(sweep, [job], {number: checked}, Slots(({},), 1), _say, script)
        return self._run.run()

    def checkpoint(self) -> Any:
        """Let the run save and end, and return the task to queue again; submitit calls this before the time is over."""
        submitit: Any = importlib.import_module("submitit")  # an extra, which type checks do without
        if self._run is not None:
            self._run.stop()
        return submitit.helpers.DelayedSubmission(SweepTask(*self._named))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


Say = Callable[[str], None]
WRONG = 2
"""Exit code of a job whose values do not go together, as `train.py` has it."""


def run_command(command: Command, say: Say, script: Path = TRAIN) -> int:
    """Run a sweep and return the worst exit code."""
    opened = open_sweep(command, datetime.now())
    if any(job.config["trainer"]["strategy"] == MULTI_WORKER for job in _examples(opened)):
        raise UserError(
            f"trainer.strategy={MULTI_WORKER} received with -m, whose jobs are one process each. Expected one run at a "
            "time: python scripts/launch.py workers=<number> ..., or trainer.strategy=mirrored."
        )
    directory = opened.sweep.directory
    make_directory(directory, "--sweep")
    with locked(directory):
        worst = _run(opened, command.jobs, say, script)
    _report(opened, say)
    return worst


def _run(opened: OpenSweep, asked: int | None, say: Say, script: Path) -> int:
    sweep = opened.sweep
    missing = missing_jobs(sweep)
    count = len(missing) + (max(0, sweep.trials - len(sweep.jobs)) if sweep.trials else 0)
    spread = any(job.config["trainer"]["strategy"] != NONE for job in _examples(opened))
    slots = divide(count, asked, spread=spread)
    sweep.threads = sweep.threads or slots.threads
    sweep.write()
    say(describe_start(opened, count, len(slots)))
    if not count:
        return 0
    run = listed_run(sweep, missing, opened.checked, slots, say, script, label=lambda job: _label(opened, job))
    if not sweep.trials:
        return run.run()
    supply = _Supply(opened, run.next_job, say)
    run.next_job = supply
    return max(run.run(), supply.worst)


def listed_run(
    sweep: Sweep,
    jobs: Iterable[SweepJob],
    checked: Mapping[int, Job],
    slots: Slots,
    say: Say,
    script: Path = TRAIN,
    *,
    label: Callable[[SweepJob], str] = lambda job: " ".join(job.overrides),
) -> SweepRun:
    """Return what runs jobs of a sweep, whose checked forms are known by number."""
    waiting = iter(jobs)
    return SweepRun(
        sweep,
        slots,
        next_job=lambda: next(waiting, None),
        arguments=lambda job: job_arguments(sweep, job, added_threads(sweep, checked[job.number])),
        label=label,
        say=say,
        script=script,
    )


def _examples(opened: OpenSweep) -> list[Job]:
    return [*opened.checked.values(), *([opened.example] if opened.example else [])]


def missing_jobs(sweep: Sweep) -> list[SweepJob]:
    """Return the recorded jobs that are still to be made, and record how the others ended.

    A trial of a search that failed is a result, too: it says where not to look. In a grid it is made again.
    """
    missing = []
    for job in sweep.jobs:
        if is_done(sweep, job):
            job.status = str(read_summary(sweep.run_directory(job))["status"])
        elif sweep.trials is None or job.status != FAILED:
            missing.append(job)
    return missing


class _Supply:
    """Yield the jobs that are missing, then those that a search chooses; note which choices were wrong."""

    def __init__(self, opened: OpenSweep, missing: Callable[[], SweepJob | None], say: Say) -> None:
        assert opened.example is not None
        self._opened, self._missing, self._say = opened, missing, say
        self._search = Search(opened.sweep, opened.fixed, opened.space, opened.example.config)
        self.worst = 0

    def __call__(self) -> SweepJob | None:
        if (job := self._missing()) is not None:
            return job
        sweep, fixed = self._opened.sweep, self._opened.fixed
        while len(sweep.jobs) < (sweep.trials or 0):
            overrides = self._search.suggest()
            job = new_job(len(sweep.jobs) + 1, overrides, [each for each in overrides if each not in fixed])
            sweep.jobs.append(job)
            try:
                (self._opened.checked[job.number],) = preflight_each(command_of(sweep), [overrides])
                return job
            except UserError as error:  # values that are right one by one, but not together
                job.status, job.exit_code = FAILED, WRONG
                self.worst = WRONG
                write_whole(sweep.log(job), f"Error: {error}\n")
                record(sweep, job)
                self._say(f"[{job.number}/{sweep.trials}] {FAILED:<11} {_label(self._opened, job)}: Error: {error}")
        return None


def _label(opened: OpenSweep, job: SweepJob) -> str:
    """Return the overrides that tell a job from the others; all of them where there is no other."""
    if opened.space:
        own = [each for each in job.overrides if each not in opened.fixed]
    else:
        own = own_overrides(job.overrides, [each.overrides for each in opened.sweep.jobs])
    return " ".join(own or job.overrides)


def describe_start(opened: OpenSweep, missing: int, places: int) -> str:
    """Return what will happen, in a line or two."""
    sweep = opened.sweep
    total = sweep.trials or len(sweep.jobs)
    lines = [f"Sweep of {total} {'trials' if sweep.trials else 'jobs' if total > 1 else 'job'} in {sweep.directory}"]
    if opened.added:
        lines.append(f"{opened.added} of them are new: the sweep had {len(sweep.jobs) - opened.added}.")
    if missing < total:
        lines.append(f"{total - missing} need{'s' if total - missing == 1 else ''} nothing more.")
    if missing:
        threads = f"{sweep.threads} thread{'s' if sweep.threads != 1 else ''} each"
        lines.append(f"{missing} to run, {places} at a time, {threads}. They print to {sweep.directory}/<number>.log")
    return "\n".join(lines)


def _report(opened: OpenSweep, say: Say) -> None:
    """Show the jobs side by side, what is missing, and where to look next."""
    sweep = opened.sweep
    summaries = {job.number: read_summary(sweep.run_directory(job)) for job in sweep.jobs}
    summaries = {number: summary for number, summary in summaries.items() if is_complete(summary)}
    if summaries:
        console = Console()
        with console.capture() as capture:
            print_comparison(console, compare(find_runs([str(sweep.directory)]).runs))
        say("\n" + capture.get().rstrip())
    say(describe_end(opened, summaries))


def describe_end(opened: OpenSweep, summaries: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the outcome of the jobs, by the summaries of those that ended well, and what can be done next."""
    sweep = opened.sweep
    directory = shlex.quote(str(sweep.directory))
    lines = [
        f"Job {job.number} {job.status}: see {sweep.log(job)}"
        for job in sweep.jobs
        if job.number not in summaries and job.exit_code is not None
    ]
    if missing_jobs(sweep) or len(sweep.jobs) < (sweep.trials or 0):
        lines.append(f"Run what is missing: python train.py -m --sweep {directory}")
    values = {number: (summary.get("best") or {}).get("value") for number, summary in summaries.items()}
    known = {number: value for number, value in values.items() if value is not None}
    if opened.example and known:
        first = next(iter(known))
        choose = min if summaries[first]["best"].get("mode") == "min" else max
        best = choose(known, key=lambda number: known[number])
        own = [each for each in sweep.jobs[best - 1].overrides if each not in opened.fixed]
        lines.append(f"Best {describe_best(summaries[best]).rstrip(', ')}: {' '.join(own)}")
    if summaries:
        lines.append(f"Compare: python scripts/compare.py {directory}; tensorboard --logdir {directory}")
    return "\n".join(lines)
