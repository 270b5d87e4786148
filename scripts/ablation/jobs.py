"""Run the jobs of an ablation as a sweep: isolated, several at a time, none made twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainer.config.command import Command
from trainer.config.preflight import preflight_each
from trainer.errors import UserError
from trainer.run.lock import locked
from trainer.sweep.command import missing_jobs
from trainer.sweep.process import TRAIN
from trainer.sweep.record import FILE_NAME, Sweep, SweepJob, read_sweep
from trainer.sweep.run import SweepRun
from trainer.sweep.slots import divide, usable_cores, usable_gpus
from trainer.sweep.start import added_threads, is_done, job_arguments


def run_missing(
    directory: Path, jobs: Mapping[str, Sequence[str]], say: Callable[[str], None], *, script: Path = TRAIN
) -> int:
    """Run the jobs whose runs are not complete; return the worst exit code.

    Args:
        directory: of all jobs; made where it is not there. It is that of a sweep, and can be read as one.
        jobs: overrides of each, by the name of its run directory.
        say: shows a line.
        script: that each job runs.

    Raises:
        UserError: the directory holds other jobs, or cannot be written.
    """
    sweep = _open(directory, jobs)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}. Give another out=.") from error
    with locked(directory):
        wanted = [list(overrides) for overrides in jobs.values()]
        missing = [job for job in missing_jobs(sweep) if job.overrides in wanted]
        checked = preflight_each(Command(()), [job.overrides for job in missing])
        places = divide(max(1, len(missing)), None, usable_cores(), usable_gpus())
        sweep.threads = sweep.threads or places.threads
        sweep.write()
        threads = {job.number: added_threads(sweep, each) for job, each in zip(missing, checked, strict=True)}
        say(f"{len(missing)} of {len(jobs)} jobs to run, {len(places)} at a time; logs: {directory}/<number>.log")
        waiting = iter(missing)
        run = SweepRun(
            sweep,
            places,
            next_job=lambda: next(waiting, None),
            arguments=lambda job: job_arguments(sweep, job, threads[job.number]),
            label=lambda job: job.run,
            say=say,
            script=script,
        )
        return run.run() if missing else 0


def is_made(directory: Path, overrides: Sequence[str]) -> bool:
    """Return whether a job has come to its end.

    Args:
        directory: of all jobs.
        overrides: of the job.
    """
    if not (directory / FILE_NAME).exists():
        return False
    sweep = read_sweep(directory)
    return any(job.overrides == list(overrides) and is_done(sweep, job) for job in sweep.jobs)


def _open(directory: Path, jobs: Mapping[str, Sequence[str]]) -> Sweep:
    """Return the sweep of the jobs, with what an earlier one of the same jobs knows."""
    if not (directory / FILE_NAME).exists():
        if directory.exists() and any(directory.iterdir()):
            raise UserError(
                f"{directory} holds files, but no {FILE_NAME}. Expected a new directory, or that of an ablation."
            )
        sweep = Sweep(directory)
    else:
        sweep = read_sweep(directory)
    taken = {job.run: job.overrides for job in sweep.jobs}
    made = list(taken.values())
    for name, overrides in jobs.items():
        if list(overrides) in made:
            continue
        if name in taken:
            raise UserError(f"{directory} holds other runs: {name} with {' '.join(taken[name])}. Give another out=.")
        sweep.jobs.append(SweepJob(len(sweep.jobs) + 1, list(overrides), name))
    return sweep
