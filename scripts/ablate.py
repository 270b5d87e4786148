"""Run a recipe without each of its technique hooks in turn: `python scripts/ablate.py recipe=<name> seeds=0,1,2`.

One table shows what each hook is worth: mean and standard deviation over the seeds, and the difference to the whole
recipe seed by seed. The same command again runs only what is missing.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.hooks import technique_hooks
from hookline.scripts.command import make_main, parse_options, parse_seeds
from hookline.scripts.comparison.comparison import Comparison, Group
from hookline.scripts.comparison.report import print_comparison
from hookline.scripts.comparison.runs import default_metrics, find_runs, parse_metrics
from hookline.scripts.sweep.command import listed_run, missing_jobs
from hookline.scripts.sweep.open import is_done, make_directory
from hookline.scripts.sweep.record import FILE_NAME, Sweep, SweepJob, divide, read_sweep
from hookline.scripts.sweep.run import TRAIN
from hookline.train import check
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import preflight_each
from hookline.trainer.config.stored import recipe_name
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.run.directory import locked

if TYPE_CHECKING:
    from rich.console import Console

USAGE = """python scripts/ablate.py recipe=<name> [what train.py takes ...] [key=value ...]

The whole recipe is run, and the recipe without each of its technique hooks (hooks.<name>=null); hooks that only watch,
and those that every run has, stay. A hook that another one needs cannot be taken away alone; a line says why.

  seeds        seeds of each variant, such as 0,1,2
  out          directory for the runs; without it runs/ablations/<recipe>
  metrics      what to compare, such as metrics=accuracy,validation/loss/total; without it all of the test split

The same command again runs only what is missing; python scripts/compare.py <out> shows the runs with curves and as CSV.
Exit code: 0 done, 1 a run failed, 2 a mistake of the user, 130 interrupted.
"""
TAKEN = ("seed", "run_dir", "resume")
COLUMN = "hooks"


@dataclass
class Own:
    """The options of this command alone; see `USAGE`."""

    seeds: str = "0,1,2"
    out: str = ""
    metrics: str | None = None


@dataclass
class Options:
    """All options."""

    overrides: list[str]  # what every run gets
    seeds: tuple[int, ...]  # of each variant
    out: Path  # directory for the runs
    metrics: str | None  # names of metrics, or None for all of the test split


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    for argument in arguments:
        if argument.partition("=")[0] in TAKEN or argument.startswith("-"):
            raise UserError(f"'{argument}' received. Expected seeds=0,1,2 and out=<directory>; see --help.")
    ours = [each for each in arguments if each.partition("=")[0] in Own.__dataclass_fields__]
    own, overrides = parse_options(ours, Own), [each for each in arguments if each not in ours]
    recipes = [text.partition("=")[2] for text in overrides if text.startswith("recipe=")]
    default = Path("runs") / "ablations" / (recipe_name(recipes[0]) if recipes else "")
    out = user_path(own.out, "out") if own.out else default
    return Options(overrides, parse_seeds(own.seeds), out, own.metrics)


def reasons_against(jobs: Sequence[Sequence[str]]) -> list[str | None]:
    """Return why command lines cannot run, one line each; None if they can. Nothing is trained or written."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:  # TensorFlow stays there
        return process.submit(_reasons, [list(job) for job in jobs]).result()


def _reasons(jobs: Sequence[list[str]]) -> list[str | None]:
    from hookline.trainer.quiet import plain_warnings, quiet_start

    with quiet_start():
        from hookline.trainer.run.machine import released_graphs
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
    """One way to run a recipe."""

    name: str  # "whole", or "without <hook>"
    overrides: tuple[str, ...]  # without a seed
    reason: str | None = None  # why it cannot run; None if it can, as far as is known

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
    make_directory(directory, "out=")
    with locked(directory):
        wanted = [list(overrides) for overrides in jobs.values()]
        missing = [job for job in missing_jobs(sweep) if job.overrides in wanted]
        found = preflight_each(Command(()), [job.overrides for job in missing])
        checked = {job.number: each for job, each in zip(missing, found, strict=True)}
        slots = divide(max(1, len(missing)), None)
        sweep.threads = sweep.threads or slots.threads
        sweep.write()
        say(f"{len(missing)} of {len(jobs)} jobs to run, {len(slots)} at a time; logs: {directory}/<number>.log")
        run = listed_run(sweep, missing, checked, slots, say, script, label=lambda job: job.run)
        return run.run() if missing else 0


def is_made(directory: Path, overrides: Sequence[str]) -> bool:
    """Return whether a job has come to its end."""
    if not (directory / FILE_NAME).exists():
        return False
    sweep = read_sweep(directory)
    return any(job.overrides == list(overrides) and is_done(sweep, job) for job in sweep.jobs)


def _open(directory: Path, jobs: Mapping[str, Sequence[str]]) -> Sweep:
    """Return the sweep of the jobs, with what an earlier one of the same jobs knows."""
    if (directory / FILE_NAME).exists():
        sweep = read_sweep(directory)
    elif directory.exists() and any(directory.iterdir()):
        raise UserError(
            f"{directory} holds files, but no {FILE_NAME}. Expected a new directory, or that of an ablation."
        )
    else:
        sweep = Sweep(directory)
    taken = {job.run: job.overrides for job in sweep.jobs}
    made = list(taken.values())
    for name, overrides in jobs.items():
        if list(overrides) in made:
            continue
        if name in taken:
            raise UserError(f"{directory} holds other runs: {name} with {' '.join(taken[name])}. Give another out=.")
        sweep.jobs.append(SweepJob(len(sweep.jobs) + 1, list(overrides), name))
    return sweep


def _command(options: Options) -> int:
    from hookline.hooks.monitors.console import open_console

    console = open_console()
    say = partial(console.print, soft_wrap=True)
    variants = without_impossible(options, variants_of(options.overrides, options.seeds[0]))
    jobs = {
        run_name(variant, seed): variant.job(seed)
        for variant in variants
        if variant.reason is None
        for seed in options.seeds
    }
    code = run_missing(options.out, jobs, say)
    show(console, options, variants)
    say(f"runs: {options.out}")
    return code


def show(console: Console, options: Options, variants: Sequence[Variant]) -> None:
    """Print the tables, and why variants cannot run."""
    comparison = comparison_of(options, [variant for variant in variants if variant.reason is None])
    console.print()
    whole = next((group for group in comparison.groups if group.settings[COLUMN] == variants[0].name), None)
    print_comparison(console, comparison, whole)
    for variant in variants:
        if variant.reason is not None:
            console.print(f"{variant.name}: cannot run. {variant.reason}", soft_wrap=True)


def without_impossible(options: Options, variants: Sequence[Variant]) -> list[Variant]:
    """Return variants with the reason of those that cannot run; those with a complete run can."""
    open_ones = [
        variant
        for variant in variants
        if variant.reason is None and not any(is_made(options.out, variant.job(seed)) for seed in options.seeds)
    ]
    reasons = reasons_against([variant.job(options.seeds[0]) for variant in open_ones]) if open_ones else []
    known = {variant.name: reason for variant, reason in zip(open_ones, reasons, strict=True) if reason is not None}
    if variants[0].name in known:
        raise UserError(known[variants[0].name])
    return [replace(variant, reason=known.get(variant.name, variant.reason)) for variant in variants]


def run_name(variant: Variant, seed: int) -> str:
    """Return the name of a run's directory, such as "without_prune_seed_0"."""
    return f"{variant.name.replace(' ', '_')}_seed_{seed}"


def comparison_of(options: Options, variants: Sequence[Variant]) -> Comparison:
    """Return the variants side by side; a run that is not at its end is in no average."""
    found = find_runs([str(options.out)])
    groups, unfinished = [], []
    for variant in variants:
        jobs = {tuple(variant.job(seed)) for seed in options.seeds}
        runs = [run for run in found.runs if run.overrides in jobs]
        complete = tuple(run for run in runs if run.is_complete)
        unfinished += [run for run in runs if not run.is_complete]
        if complete:
            groups.append(Group({COLUMN: variant.name}, complete, len(jobs) - len(complete)))
    kept = [run for group in groups for run in group.runs]
    metrics = default_metrics(kept) if options.metrics is None or not kept else parse_metrics(options.metrics, kept)
    return Comparison(groups, [COLUMN], [COLUMN], metrics, unfinished, unreadable=found.unreadable)


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
