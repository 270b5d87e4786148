"""Run a recipe without each of its technique hooks in turn.

python scripts/ablate.py recipe=<name> [train.py arguments ...] [key=value ...]

Runs the whole recipe, and the recipe without each of its technique hooks (hooks.<name>=null). Monitors and the default
hooks of every run stay. A hook that another one needs cannot be removed alone; a message says why.

  seeds        seeds of each variant, such as 0,1,2
  out          directory for the runs; default: runs/ablations/<recipe>
  metrics      metrics to compare, such as metrics=accuracy,validation/loss/total; default: all of the test split

Repeat the command to run only what is missing; python scripts/compare.py <out> also draws curves and writes CSV files.
Exit code: 0 done, 1 a run failed, 2 user error, 130 or 143 interrupted.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.hooks import technique_hooks
from hookline.scripts.command import make_main, parse_options, parse_seeds
from hookline.scripts.compare import print_comparison
from hookline.scripts.comparison.comparison import Comparison, Group
from hookline.scripts.comparison.runs import choose_metrics, find_runs
from hookline.scripts.sweep.command import run_missing
from hookline.scripts.sweep.open import check_place, command_of
from hookline.scripts.sweep.record import FILE_NAME, Sweep, SweepJob, divide, read_sweep
from hookline.train import check, say
from hookline.trainer.config.preflight import preflight_each
from hookline.trainer.config.stored import recipe_name
from hookline.trainer.errors import UserError, user_path

TAKEN = ("seed", "run_dir", "resume")
COLUMN, WHOLE = "hooks", "whole"
Variants = dict[str, list[str]]
"""Overrides without a seed, by variant: "whole" or "without <hook>"."""


@dataclass
class Options:
    """The options of the command line."""

    seeds: str = "0,1,2"
    out: str = ""
    metrics: str | None = None
    overrides: list[str] = field(default_factory=list, init=False)  # passed to every run

    @property
    def directory(self) -> Path:
        if self.out:
            return user_path(self.out, "out")
        recipes = [text.partition("=")[2] for text in self.overrides if text.startswith("recipe=")]
        return Path("runs") / "ablations" / (recipe_name(recipes[0]) if recipes else "")


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    for argument in arguments:
        if argument.partition("=")[0] in TAKEN or argument.startswith("-"):
            raise UserError(f"'{argument}' received. Expected seeds=0,1,2 and out=<directory>; see --help.")
    own = [each for each in arguments if each.partition("=")[0] in ("seeds", "out", "metrics")]
    options = parse_options(own, Options)
    options.overrides = [each for each in arguments if each not in own]
    parse_seeds(options.seeds)
    return options


def variants_of(overrides: Sequence[str]) -> Variants:
    """Return the overrides of the recipe, and those without each technique hook and the user's settings of it."""
    (job,) = check(overrides)
    hooks = technique_hooks(job.config["hooks"])
    if not hooks:
        raise UserError(
            f"recipe={job.recipe} has no technique hook to remove. Expected a recipe that has one, or +hooks=<name>."
        )
    variants = {WHOLE: list(overrides)}
    for hook in hooks:
        key = f"hooks.{hook}"
        kept = [text for text in overrides if not text.lstrip("+").partition("=")[0].startswith(f"{key}.")]
        is_users_own = any(text.startswith(f"+{key}.") for text in overrides)
        variants[f"without {hook}"] = [*kept, *([] if is_users_own else [f"{key}=null"])]
    return variants


def reasons_against(variants: Variants) -> dict[str, str]:
    """Return the variants that cannot run, {name: reason in one line}; nothing is trained or written."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:  # keeps TensorFlow out
        return process.submit(_reasons, variants).result()


def _reasons(variants: Variants) -> dict[str, str]:
    from hookline.trainer.deferred import plain_warnings, quiet_start

    with quiet_start():
        from hookline.trainer.run.machine import released_graphs
        from hookline.trainer.run.session import prepare
    reasons = {}
    for name, overrides in variants.items():
        try:
            with plain_warnings(), released_graphs():
                prepare(check(overrides)[0].config)
        except UserError as error:
            reasons[name] = str(error)
    return reasons


def run_jobs(directory: Path, jobs: Mapping[str, Sequence[str]]) -> int:
    """Run the jobs, {directory name: overrides}, that are not complete yet; return the worst exit code."""
    sweep = read_sweep(directory) if (directory / FILE_NAME).exists() else Sweep(directory)
    taken = {job.run: job.overrides for job in sweep.jobs}
    asked = {name: list(overrides) for name, overrides in jobs.items()}
    for name, overrides in asked.items():
        if overrides not in taken.values():
            if name in taken:
                raise UserError(f"{directory} holds another run {name}: {' '.join(taken[name])}. Give another out=.")
            sweep.jobs.append(SweepJob(len(sweep.jobs) + 1, overrides, name))
    wanted = [job for job in sweep.jobs if job.overrides in asked.values()]
    found = preflight_each(command_of(sweep), [job.overrides for job in wanted])
    checked = {job.number: each for job, each in zip(wanted, found, strict=True)}
    directory.mkdir(parents=True, exist_ok=True)
    return run_missing(sweep, checked, divide)


def _command(options: Options) -> int:
    from hookline.hooks.monitors.console import open_console

    console, out = open_console(), options.directory
    seeds = parse_seeds(options.seeds)
    variants = variants_of(options.overrides)
    check_place(out, f"out={out}")
    reasons = reasons_against(variants)
    if WHOLE in reasons:
        raise UserError(reasons[WHOLE])
    able = {name: overrides for name, overrides in variants.items() if name not in reasons}
    jobs = {
        f"{name.replace(' ', '_')}_seed_{seed}": [*overrides, f"seed={seed}"]
        for name, overrides in able.items()
        for seed in seeds
    }
    code = run_jobs(out, jobs)
    comparison = comparison_of(out, able, seeds, options.metrics)
    whole = next((group for group in comparison.groups if group.settings[COLUMN] == WHOLE), None)
    console.print()
    print_comparison(console, comparison, whole)
    for name, reason in reasons.items():
        say(f"{name}: cannot run. {reason}")
    say(f"runs: {out}")
    return code


def comparison_of(out: Path, able: Variants, seeds: Sequence[int], names: str | None) -> Comparison:
    """Return a comparison of the variants; unfinished runs are excluded from the averages."""
    found, unreadable = find_runs([str(out)])
    groups, unfinished = [], []
    for variant, overrides in able.items():
        jobs = {(*overrides, f"seed={seed}") for seed in seeds}
        runs = [run for run in found if run.overrides in jobs]
        complete = tuple(run for run in runs if run.is_complete)
        unfinished += [run for run in runs if not run.is_complete]
        if complete:
            groups.append(Group({COLUMN: variant}, complete, len(jobs) - len(complete)))
    kept = [run for group in groups for run in group.runs]
    return Comparison(groups, [COLUMN], [COLUMN], choose_metrics(names, kept), unfinished, unreadable=unreadable)


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
