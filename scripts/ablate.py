"""Run a recipe without each of its technique hooks in turn: `python scripts/ablate.py recipe=<name> seeds=0,1,2`.

One table shows what each hook is worth: mean and standard deviation over the seeds, and the difference to the whole
recipe seed by seed. The same command again runs only what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.ablation.jobs import Variant, is_made, reasons_against, run_missing, variants_of
from hookline.scripts.command import make_main
from hookline.scripts.comparison.comparison import Comparison, Group
from hookline.scripts.comparison.report import comparison_table, print_left_out, print_notes, print_table
from hookline.scripts.comparison.runs import default_metrics, find_runs, parse_metrics
from hookline.trainer.config.stored import recipe_name
from hookline.trainer.errors import UserError, user_path

if TYPE_CHECKING:
    from rich.console import Console

USAGE = """python scripts/ablate.py recipe=<name> [what train.py takes ...] [key=value ...]

The whole recipe is run, and the recipe without each of its technique hooks (hooks.<name>=null); hooks that only watch,
and those that every run has, stay. A hook that another one needs cannot be taken away alone; the table says why.

  seeds        seeds of each variant, such as 0,1,2
  out          directory for the runs; without it runs/ablations/<recipe>
  metrics      what to compare, such as metrics=accuracy,validation/loss/total; without it all of the test split

The same command again runs only what is missing; python scripts/compare.py <out> shows the runs with curves and as CSV.
Exit code: 0 done, 1 a run failed, 2 a mistake of the user, 130 interrupted.
"""
OWN = ("seeds", "out", "metrics")
TAKEN = ("seed", "run_dir", "resume")
COLUMN = "hooks"


@dataclass
class Options:
    """Hold the options.

    Attributes:
        overrides: what every run gets.
        seeds: of each variant.
        out: directory for the runs.
        metrics: names of metrics, or None for all of the test split.
    """

    overrides: list[str] = field(default_factory=list)
    seeds: tuple[int, ...] = (0, 1, 2)
    out: Path = Path()
    metrics: str | None = None


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    own: dict[str, str] = {}
    options = Options()
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in TAKEN or key.startswith("-"):
            raise UserError(f"'{argument}' received. Expected seeds=0,1,2 and out=<directory>; see --help.")
        if key not in OWN:
            options.overrides.append(argument)
        elif key in own or not value:
            raise UserError(f"'{argument}' received. Expected {key}=<value>, once.")
        else:
            own[key] = value
    recipes = [text.partition("=")[2] for text in options.overrides if text.startswith("recipe=")]
    default = Path("runs") / "ablations" / (recipe_name(recipes[0]) if recipes else "")
    options.out = user_path(own["out"], "out") if "out" in own else default
    options.metrics = own.get("metrics")
    options.seeds = _seeds(own["seeds"]) if "seeds" in own else options.seeds
    return options


def _seeds(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) != len(parts):
        raise UserError(f"seeds={text} received. Expected different whole numbers, such as seeds=0,1,2.")
    return tuple(int(part) for part in parts)


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
    """Print the table, and notes on it."""
    comparison = comparison_of(options, [variant for variant in variants if variant.reason is None])
    impossible = [variant for variant in variants if variant.reason is not None]
    console.print()
    if comparison.groups:
        reference = next((group for group in comparison.groups if group.settings[COLUMN] == variants[0].name), None)
        table = comparison_table(comparison, reference)
        for variant in impossible:
            table.add_row(variant.name, *["-"] * (len(table.columns) - 1))
        told = "" if reference is None else "; differences to the whole, seed by seed"
        print_table(console, table, f"Ablation: mean ± standard deviation over n seeds{told}")
    for variant in impossible:
        console.print(f"{variant.name}: cannot run. {variant.reason}", soft_wrap=True)
    print_notes(console, comparison)
    print_left_out(console, comparison)


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
