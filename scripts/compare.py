"""Compare finished runs.

python scripts/compare.py <directory> [<directory> ...] [key=value ...]

Runs that differ only in the seed are one row: mean and standard deviation of what they reached. Runs that failed or are
not at their end are listed, and are in no average.

Each directory is a run, a sweep, or holds runs below it, such as runs/bnn.

  metrics      what to compare, such as metrics=accuracy,validation/loss/total,train/loss/total; a name without a split
               is of the test split; without it all metrics of the test split
  sort         column to sort by: validation, size, parameters, seconds, a metric (sort=test/accuracy) or a setting
               (sort=learning_rate); without it the best on the validation split comes first
  against      the group that others are compared with, seed by seed, such as against=recipe=baseline; settings are
               joined by a comma; without it the best by validation
  csv          file to write the table to, with all settings in which the groups differ
  chart        PNG file for curves of training and validation over the steps, with a panel for each metric
  overwrite    true writes over files that exist

Exit code: 0 done, 2 a mistake of the user, also a damaged run that is named; damaged ones below a directory are listed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import check_output, make_main, parse_options
from hookline.scripts.comparison.comparison import Comparison, Group, compare, show_setting, sort
from hookline.scripts.comparison.report import print_comparison, write_chart, write_csv
from hookline.scripts.comparison.runs import find_runs
from hookline.trainer.errors import UserError, unknown_name, user_path


@dataclass
class Options:
    """The options of the command line."""

    metrics: str | None = None
    sort: str | None = None
    against: str | None = None
    csv: str | None = None
    chart: str | None = None
    overwrite: bool = False
    paths: list[str] = field(default_factory=list, init=False)  # of the directories


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    paths = [argument for argument in arguments if "=" not in argument or os.path.exists(argument)]
    options = parse_options([argument for argument in arguments if argument not in paths], Options)
    options.paths = paths
    if not paths:
        raise UserError("No run was given. Expected directories, such as runs/bnn; see --help.")
    for name, ending in (("csv", ".csv"), ("chart", ".png")):
        if (text := getattr(options, name)) is not None:
            check_output(name, text, [ending], overwrite=options.overwrite)
    return options


def _command(options: Options) -> None:
    from hookline.hooks.monitors.console import open_console

    runs, unreadable = find_runs(options.paths)
    comparison = compare(runs, options.metrics)
    comparison.unreadable = unreadable
    if options.sort is not None:
        sort(comparison, options.sort)
    reference = None if options.against is None else find_group(comparison, options.against)
    console = open_console()
    print_comparison(console, comparison, reference)
    if (options.csv or options.chart) and not comparison.groups:
        raise UserError("No run is at its end, so there is nothing to write. Expected a run that is.")
    if options.csv:
        write_csv(comparison, user_path(options.csv, "csv"))
        console.print(f"table: {options.csv}", soft_wrap=True)
    if options.chart:
        notes = write_chart(comparison, user_path(options.chart, "chart"))
        console.print("\n".join([f"chart: {options.chart}", *notes]), soft_wrap=True)


def find_group(comparison: Comparison, text: str) -> Group:
    """Return the one group that has some settings."""
    keys = dict(zip(comparison.names, comparison.columns, strict=True)) | {key: key for key in comparison.differing}
    wanted = dict(part.partition("=")[::2] for part in text.split(",")) if "=" in text else {text: ""}
    for name in wanted:
        if name not in keys:
            raise unknown_name("setting in against", name, keys)
    matching = [
        group
        for group in comparison.groups
        if all(show_setting(keys[name], group.settings[keys[name]]) == value for name, value in wanted.items())
    ]
    if len(matching) != 1:
        labels = "; ".join(comparison.label(group).replace(" ", ",") for group in comparison.groups)
        raise UserError(f"against={text} matches {len(matching)} groups. Expected one of: {labels}.")
    return matching[0]


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
