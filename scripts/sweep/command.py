"""The command that runs a sweep."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hookline.hooks.monitors.console import open_console
from hookline.scripts.compare import print_comparison
from hookline.scripts.comparison.comparison import compare
from hookline.scripts.comparison.runs import find_runs
from hookline.scripts.sweep.open import command_of, open_space, open_sweep, untrusted
from hookline.scripts.sweep.record import Slots, Sweep, SweepJob, claim, divide, read_sweep, record
from hookline.scripts.sweep.run import SweepRun
from hookline.train import say
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import Job, preflight_each
from hookline.trainer.errors import UserError
from hookline.trainer.replicas.cluster import MULTI_WORKER, NONE
from hookline.trainer.run.directory import locked
from hookline.trainer.run.results import is_complete


class SweepTask:
    """Start or resume a job, or run trials of a search until none is left; nothing is run twice."""

    def __init__(self, directory: Path, number: int | None, place: Path, storage: str | None = None) -> None:
        """Store the sweep, the job (None for the trials of a search), the working directory and the storage."""
        self._named = (directory, number, place, storage)
        self._run: SweepRun | None = None

    def __call__(self) -> int:
        """Run the job or the trials, and return the worst exit code."""
        directory, number, place, storage = self._named
        os.chdir(place)
        sweep = read_sweep(directory)
        if number is None:
            from hookline.scripts.sweep.search import Search  # Optuna: an extra

            self._run = Search(open_space(sweep), storage)
            return self._run.run()
        job = next(each for each in sweep.jobs if each.number == number)
        (checked,) = preflight_each(command_of(sweep), [job.overrides])
        worker = 0  # index of this task among the workers of the run
        if checked.config["trainer"]["strategy"] == MULTI_WORKER:  # its processes need to find each other
            submitit: Any = importlib.import_module("submitit")
            here = submitit.helpers.TorchDistributedEnvironment()  # SLURM's own variables take precedence
            worker = int(here.export(set_cuda_visible_devices=False, overwrite=True).rank)
        if (descriptor := claim(directory, number, worker)) is None:
            say(f"Job {number} is already running in another task.")
            return 0
        if job not in missing_jobs(sweep):
            record(sweep, job)
            say(f"Job {number} is complete: nothing is left to do.")
        else:
            self._run = SweepRun(sweep, Slots(({},), 1), jobs=[job], checked={number: checked})
            self._run.claims, self._run.worker = {number: descriptor}, worker
        try:
            return self._run.run() if self._run else 0
        finally:
            os.close(descriptor)

    def checkpoint(self) -> Any:
        """Make the runs save and end, and return the task to requeue; submitit calls this near the time limit."""
        submitit: Any = importlib.import_module("submitit")  # an extra, which type checks do without
        if self._run is not None:
            self._run.stop()
        return submitit.helpers.DelayedSubmission(type(self)(*self._named))


def run_command(command: Command) -> int:
    """Run a sweep and return the worst exit code."""
    opened = open_sweep(command)
    strategies = {job.config["trainer"]["strategy"] for job in opened.checked.values()}
    if MULTI_WORKER in strategies:
        raise UserError(
            f"trainer.strategy={MULTI_WORKER} received with -m, whose jobs are one process each. Expected one run at a "
            "time: python scripts/launch.py workers=<number> ..., scripts/submit.py, or trainer.strategy=mirrored."
        )
    share = partial(divide, asked=command.jobs, spread=bool(strategies - {NONE}))
    if opened.space:
        from hookline.scripts.sweep.search import begin_search  # Optuna: an extra

        search = begin_search(command, opened, share)
        sweep = search.sweep
        say(describe_start(sweep, sweep.trials or 0, search.missing, len(search.slots)))
        worst = search.run()
        _report(sweep, search.describe_end(), search.missing > 0)
    else:
        sweep = opened.sweep
        sweep.directory.mkdir(parents=True, exist_ok=True)
        worst = run_missing(sweep, opened.checked, share)
        left = missing_jobs(sweep)
        ended = [f"Job {job.number} {job.status}: see {sweep.log(job)}" for job in left if job.exit_code is not None]
        _report(sweep, ended, bool(left))
    return worst


def run_missing(sweep: Sweep, checked: Mapping[int, Job], share: Callable[[int], Slots]) -> int:
    """Run the checked jobs, by number, that are not complete yet; return the worst exit code."""
    with locked(sweep.directory):
        missing = [job for job in missing_jobs(sweep) if job.number in checked]
        slots = share(len(missing))
        sweep.threads = sweep.threads or slots.threads
        sweep.write()
        say(describe_start(sweep, len(checked), len(missing), len(slots)))
        return SweepRun(sweep, slots, jobs=missing, checked=checked).run() if missing else 0


def missing_jobs(sweep: Sweep) -> list[SweepJob]:
    """Return the recorded jobs that are not complete yet, and set the status of the others."""
    missing = []
    for job in sweep.jobs:
        if is_complete(summary := sweep.summary(job)):  # on disk, whatever the record says
            job.status = str(summary["status"])
        else:
            missing.append(job)
    return missing


def describe_start(sweep: Sweep, total: int, missing: int, places: int) -> str:
    """Return a description of what will run, in one to three lines."""
    lines = [f"Sweep of {total} {'trials' if sweep.trials else 'jobs' if total > 1 else 'job'} in {sweep.directory}"]
    if missing < total:
        lines.append(f"{total - missing} need{'s' if total - missing == 1 else ''} nothing more.")
    if missing:
        threads = f"{sweep.threads} thread{'s' if sweep.threads != 1 else ''} each"
        lines.append(f"{missing} to run, {places} at a time, {threads}. They print to {sweep.directory}/<number>.log")
    return "\n".join(lines)


def _report(sweep: Sweep, lines: list[str], is_missing: bool) -> None:
    """Show the jobs side by side, how they ended, what is missing, and where to look next."""
    (runs, _), directory = find_runs([str(sweep.directory)]), shlex.quote(str(sweep.directory))
    if is_missing:
        again = "the whole command line again" if untrusted(sweep) else f"python train.py -m --sweep {directory}"
        lines.append(f"Run what is missing: {again}")
    if any(run.is_complete for run in runs):
        console = open_console()
        console.print()
        print_comparison(console, compare(runs))
        lines.append(f"Compare: python scripts/compare.py {directory}; tensorboard --logdir {directory}")
    say("\n".join(lines))
