"""Compare finished runs.

python scripts/compare.py <directory> [<directory> ...] [key=value ...]

Runs that differ only in the seed share one row: mean and standard deviation of their results. Failed and unfinished
runs are listed, but excluded from the averages.

Each directory is a run, a sweep, or contains runs, such as runs/bnn.

  metrics      what to compare, such as metrics=accuracy,validation/loss/total,train/loss/total; a name without a split
               refers to the test split; default: all metrics of the test split
  sort         column to sort by: validation, size, parameters, seconds, a metric (sort=test/accuracy) or a setting
               (sort=learning_rate); default: the best on the validation split first
  against      the group to compare the others with, seed by seed, such as against=recipe=baseline; separate several
               settings by commas; default: the best by validation
  csv          file to write the table to, with all settings in which the groups differ
  chart        PNG file for curves of training and validation over the steps, with a panel for each metric
  overwrite    true overwrites existing files

Exit code: 0 done, 2 user error, or a damaged run given by name; damaged runs below a directory are only listed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.hooks.monitors.console import TextTable, open_console, show
from hookline.scripts.command import check_output, csv_text, make_main, new_figure, parse_options, write_file
from hookline.scripts.comparison.comparison import COUNT, Comparison, Group, compare, difference, show_setting, sort
from hookline.scripts.comparison.runs import StoredRun, find_runs, number
from hookline.trainer.errors import UserError, check_choice, printable, user_path
from hookline.trainer.files import parse_json, read_lines
from hookline.trainer.run.results import format_bytes, short_name

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console


@dataclass
class Options:
    """The options of the command line."""

    metrics: str | None = None
    sort: str | None = None
    against: str | None = None
    csv: str | None = None
    chart: str | None = None
    overwrite: bool = False
    paths: list[str] = field(default_factory=list, init=False)  # directories given


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
    runs, unreadable = find_runs(options.paths)
    comparison = compare(runs, options.metrics)
    comparison.unreadable = unreadable
    if options.sort is not None:
        sort(comparison, options.sort)
    reference = None if options.against is None else find_group(comparison, options.against)
    console = open_console()
    print_comparison(console, comparison, reference)
    if (options.csv or options.chart) and not comparison.groups:
        raise UserError("No run is complete, so there is nothing to write. Expected at least one complete run.")
    if options.csv:
        write_csv(comparison, user_path(options.csv, "csv"))
        console.print(f"table: {options.csv}", soft_wrap=True)
    if options.chart:
        notes = write_chart(comparison, user_path(options.chart, "chart"))
        console.print("\n".join([f"chart: {options.chart}", *notes]), soft_wrap=True)


def find_group(comparison: Comparison, text: str) -> Group:
    """Return the only group that matches settings such as "recipe=baseline"; raise UserError for none or several."""
    keys = dict(zip(comparison.names, comparison.columns, strict=True)) | {key: key for key in comparison.differing}
    parts = re.split(f",(?=(?:{'|'.join(map(re.escape, keys))})=)", text)  # not at a comma inside a value
    wanted = dict(part.partition("=")[::2] for part in parts) if "=" in text else {text: ""}
    for name in wanted:
        check_choice("setting in against", name, keys)
    matching = [
        group
        for group in comparison.groups
        if all(show_setting(keys[name], group.settings[keys[name]]) == value for name, value in wanted.items())
    ]
    if len(matching) != 1:
        labels = "; ".join(comparison.label(group, ",") for group in comparison.groups)
        raise UserError(f"against={text} matches {len(matching)} groups. Expected one of: {labels}.")
    return matching[0]


SHOWN_KEYS = 6
COSTS = ("size", "parameters", "seconds")
"""The last columns, omitted in a narrow terminal."""


def print_comparison(console: Console, comparison: Comparison, reference: Group | None = None) -> None:
    """Print a comparison to a console from `open_console`."""
    if comparison.groups:
        show(console, comparison_table(comparison))
    print_notes(console, comparison)
    reference = reference or comparison.best
    if reference is not None and (table := paired_table(comparison, reference)) is not None:
        console.print()
        show(console, table)
    _print_list(console, "unfinished", [_describe(run) for run in comparison.unfinished])
    repeats = [f"{run.name}: a later run has the same settings and seed {run.seed}" for run in comparison.repeated]
    _print_list(console, "repeated", repeats)
    _print_list(console, "unreadable", comparison.unreadable)


def comparison_table(comparison: Comparison) -> TextTable:
    """Return a table with one row per group."""
    shared = comparison.monitor
    best = "best validation" if shared is None else f"validation {short_name(shared.name)} ({shared.direction})"
    columns = (*comparison.names, COUNT, best, *(metric.label for metric in comparison.metrics), *COSTS)
    rows = []
    for group in comparison.groups:
        count, monitored = str(len(group.runs)), str(group.spread(group.monitor))
        if group.unfinished:
            count += f" of {len(group.runs) + group.unfinished}"
        if shared is None:
            monitored = f"{short_name(group.monitor.name)} ({group.monitor.direction}) {monitored}"
        values = [str(group.spread(metric)) for metric in comparison.metrics]
        costs = [format_bytes(group.mean("bytes.deployed")), f"{group.mean('params.total'):,.0f}"]
        cells = [count, monitored, *values, *costs, f"{group.mean('seconds'):.1f}"]
        rows.append([*comparison.cells(group), *cells])
    title = "Comparison: mean ± standard deviation over n seeds"
    return TextTable(title, columns, rows, COSTS[::-1], comparison.names)


def print_notes(console: Console, comparison: Comparison) -> None:
    """Print which group is the best, and what the table omits."""
    monitors = sorted({f"{short_name(group.monitor.name)} ({group.monitor.direction})" for group in comparison.groups})
    if len(monitors) > 1:
        told = f"The groups chose their best step by different metrics: {', '.join(monitors)}. None is called the best."
        console.print(told, soft_wrap=True)
    if len(comparison.groups) > 1 and (best := comparison.best) is not None:
        values = ", ".join(f"{metric.label} {best.spread(metric)}" for metric in comparison.metrics)
        console.print(f"Best by validation: {comparison.label(best)}{f' ({values})' if values else ''}", soft_wrap=True)
    others = [key for key in comparison.differing if key not in comparison.columns]
    if others:
        more = f" and {len(others) - SHOWN_KEYS} more" if len(others) > SHOWN_KEYS else ""
        console.print(f"The groups also differ in: {', '.join(others[:SHOWN_KEYS])}{more}", soft_wrap=True)


def paired_table(comparison: Comparison, reference: Group) -> TextTable | None:
    """Return a table of the differences from a group, seed by seed; None without a shared seed or without metrics."""
    others = [group for group in comparison.groups if group is not reference]
    others = [group for group in others if {*group.seeds} & {*reference.seeds}]
    if not others or not comparison.metrics:
        return None
    rows = []
    for group in others:
        found = [
            difference(reference.by_seed(metric), group.by_seed(metric), metric.direction)
            for metric in comparison.metrics
        ]
        rows.append([*comparison.cells(group), *found])
    title = f"Difference to {comparison.label(reference)}, at the seeds that both have"
    columns = (*comparison.names, *(metric.label for metric in comparison.metrics))
    return TextTable(title, columns, rows, texts=comparison.names)


def _describe(run: StoredRun) -> str:
    where = "" if run.directory is None or str(run.directory) in run.name else f" ({run.directory})"
    return f"{run.name}: {run.status}, {' '.join(run.overrides)}{where}"


def _print_list(console: Console, what: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(f"\nNot averaged, {what}: {len(lines)} run{'' if len(lines) == 1 else 's'}", soft_wrap=True)
        for line in lines:
            console.print(f"  {printable(line)}", soft_wrap=True)


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write a CSV row of plain numbers for each group, with every setting in which the groups differ."""
    keys = list(dict.fromkeys([*comparison.columns, *comparison.differing]))
    metrics = {f"{metric.split}/{metric.name}": metric for metric in comparison.metrics}
    rows: list[dict[str, Any]] = []
    for group in comparison.groups:
        row: dict[str, Any] = {key: show_setting(key, group.settings[key]) for key in keys}
        row |= {"n": len(group.runs), "unfinished": group.unfinished, "seeds": " ".join(map(str, group.seeds))}
        row |= {"monitor": group.monitor.name, "mode": group.monitor.direction}
        for name, metric in {"best_validation": group.monitor, **metrics}.items():
            found = group.spread(metric)
            row |= {f"{name}/mean": found.mean, f"{name}/std": found.deviation, f"{name}/n": found.count}
        row |= {"bytes": group.mean("bytes.deployed"), "parameters": group.mean("params.total")}
        rows.append(row | {"seconds": group.mean("seconds"), "runs": " ".join(run.name for run in group.runs)})
    write_file(path, csv_text([list(rows[0]), *(row.values() for row in rows)]))


FILE_NAME = "metrics.jsonl"
Curves = dict[tuple[str, str], dict[int, float]]
"""Curves of one run: {(split, metric): {step: value}}."""


def read_curves(directory: Path, names: Sequence[str]) -> Curves:
    """Return the curves of a run, skipping damaged or truncated lines."""
    curves: Curves = {}
    for line in read_lines(directory / FILE_NAME):
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            report = parse_json(line)
            step, split = int(report["step"]), str(report["split"])
            for name in names:
                if (value := number(report.get(name))) is not None:
                    curves.setdefault((split, name), {})[step] = value
    return curves


def average(curves: Sequence[dict[int, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steps common to all curves, int [points], and their mean and sample deviation (0 for one curve)."""
    import numpy as np

    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[step] for step in steps] for curve in curves], dtype=float)
    deviation = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(steps))
    return np.array(steps, dtype=int), values.mean(axis=0), deviation


COLORS = ["#1b6ca8", "#d1495b", "#2e933c", "#f2a541", "#7d5ba6", "#00a6a6", "#8c564b", "#e377c2", "#7f7f7f", "#a9b4c2"]
"""One per group; more would be indistinguishable."""
STYLES = {"validation": "-", "train": "--"}
WIDTH, HEIGHT = 10.0, 4.2
"""Size of a panel, in inches."""


def write_chart(comparison: Comparison, path: Path) -> list[str]:
    """Write a PNG file, with the mean over seeds as a line and one standard deviation as a band; return notes.

    A mean is drawn at the steps common to all runs of a group; longer runs continue as thin lines.
    """
    groups = comparison.groups[: len(COLORS)]
    compared = [metric.name for metric in comparison.metrics]  # the metrics that chose the best step are added below
    names = list(dict.fromkeys([*compared, *(group.monitor.name for group in comparison.groups)]))
    curves, notes = {}, []
    if len(comparison.groups) > len(groups):
        notes.append(f"The chart shows the first {len(groups)} of {len(comparison.groups)} groups.")
    for run in (run for group in groups for run in group.runs):
        try:
            curves[run.name] = read_curves(run.directory or Path(), names)
        except OSError as error:
            notes.append(f"Not in the chart: {run.name} ({error.filename}: {error.strerror})")
    figure = new_figure(WIDTH, HEIGHT * len(names))
    panels = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        for color, group in zip(COLORS, groups, strict=False):
            found = [curves[run.name] for run in group.runs if run.name in curves]
            _draw(axes, name, comparison.label(group), found, color)
        axes.set_title(f"{short_name(name)}: solid validation, dashed training", loc="left", fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        lines = [line.get_ydata() for line in axes.get_lines()]
        if "loss/" in name and all((line > 0).all() for line in lines if len(line)):
            axes.set_yscale("log")
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=110, format="png")
    return notes


def _draw(axes: Any, name: str, label: str, runs: Sequence[Curves], color: str) -> None:
    for split, style in STYLES.items():
        curves = [run[split, name] for run in runs if (split, name) in run]
        if not curves:
            continue
        steps, mean, deviation = average(curves)
        marker = "o" if len(steps) == 1 else None
        text = f"{label} (n={len(curves)})" if split == "validation" else None
        axes.plot(steps, mean, style, color=color, linewidth=1.6, marker=marker, label=text)
        axes.fill_between(steps, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)
        for curve in curves:  # the parts beyond the mean
            rest = {step: value for step, value in curve.items() if not len(steps) or step >= steps[-1]}
            if len(rest) > 1:
                axes.plot([*rest], [*rest.values()], style, color=color, linewidth=0.6)


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
