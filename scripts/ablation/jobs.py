"""The jobs of an ablation."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hookline.hooks.techniques import technique_hooks
from hookline.scripts.sweep.command import missing_jobs
from hookline.scripts.sweep.open import added_threads, is_done, job_arguments
from hookline.scripts.sweep.record import FILE_NAME, Sweep, SweepJob, divide, read_sweep, usable_cores, usable_gpus
from hookline.scripts.sweep.run import TRAIN, SweepRun
from hookline.train import check
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import preflight_each
from hookline.trainer.errors import UserError
from hookline.trainer.run.lock import locked


def reasons_against(jobs: Sequence[Sequence[str]]) -> list[str | None]:
    """Return why command lines cannot run, one line each; None if they can. Nothing is trained or written."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:  # TensorFlow stays there
        return process.submit(_reasons, [list(job) for job in jobs]).result()


def _reasons(jobs: Sequence[list[str]]) -> list[str | None]:
    from hookline.trainer.quiet import plain_warnings, quiet_start

    with quiet_start():
        from hookline.trainer.run.release import released_graphs
        from hookline.trainer.run.session import prepare
    reasons: list[str | None] = []
    for job in jobs:
        try:
            with plain_warnings(), released_graphs():
                prepare(check(job)[0].config)
            reasons.append(None)
        except UserError as error:
            reasons.append(str(error))
    return reasons


WHOLE = "whole"


@dataclass(frozen=True)
class Variant:
    """Hold one way to run a recipe.

    Attributes:
        name: "whole", or "without <hook>".
        overrides: without a seed.
        reason: why it cannot run; None if it can, as far as is known.
    """

    name: str
    overrides: tuple[str, ...]
    reason: str | None = None

    def job(self, seed: int) -> list[str]:
        """Return the overrides of a job."""
        return [*self.overrides, f"seed={seed}"]


def variants_of(overrides: Sequence[str], seed: int) -> list[Variant]:
    """Return the recipe as it is, and without each of its technique hooks."""
    whole = Variant(WHOLE, tuple(overrides))
    (job,) = check(whole.job(seed))
    hooks = technique_hooks(job.config["hooks"])
    if not hooks:
        raise UserError(
            f"recipe={job.recipe} has no technique hook to take away. Expected a recipe that has one, or +hooks=<name>."
        )
    return [whole, *(_without(name, overrides, seed) for name in hooks)]


def _without(hook: str, overrides: Sequence[str], seed: int) -> Variant:
    """Return the recipe without a hook, and so without what the user set for it."""
    key = f"hooks.{hook}"
    kept = [text for text in overrides if not text.lstrip("+").partition("=")[0].startswith(f"{key}.")]
    is_users_own = any(text.startswith(f"+{key}.") for text in overrides)
    variant = Variant(f"without {hook}", (*kept, *([] if is_users_own else [f"{key}=null"])))
    try:
        check(variant.job(seed))
    except UserError as error:
        return Variant(variant.name, variant.overrides, str(error))
    return variant


def run_missing(
    directory: Path, jobs: Mapping[str, Sequence[str]], say: Callable[[str], None], *, script: Path = TRAIN
) -> int:
    """Run the jobs whose runs are not complete; return the worst exit code."""
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
    """Return whether a job has come to its end."""
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
