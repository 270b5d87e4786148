"""A comparison as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hookline.scripts.command import csv_text, write_file
from hookline.scripts.comparison.comparison import COUNT, Comparison, Group, difference, show_setting
from hookline.scripts.comparison.runs import StoredRun
from hookline.trainer.errors import printable
from hookline.trainer.run.results import format_bytes, short_name

SHOWN_KEYS = 6
WIDEST, GAP, FOLDED = 1000, 2, 7
"""In characters: the width of a table that nothing limits, what is between columns, and how narrow texts may become."""
WHOLE = (COUNT, "size", "parameters", "seconds")
"""Columns whose cells stay on one line; the others fold where a terminal is narrow."""


def print_comparison(console: Console, comparison: Comparison, reference: Group | None = None) -> None:
    """Print a comparison."""
    if comparison.groups:
        print_table(console, comparison_table(comparison), "Comparison: mean ± standard deviation over n seeds")
    print_notes(console, comparison)
    reference = reference or comparison.best
    if reference is not None and (table := paired_table(comparison, reference)) is not None:
        console.print()
        title = f"Difference to {comparison.label(reference)}, at the seeds that both have"
        print_table(console, table, title)
    _print_list(console, "not at their end", [_describe(run) for run in comparison.unfinished])
    repeats = [f"{run.name}: a later run has the same settings and seed {run.seed}" for run in comparison.repeated]
    _print_list(console, "repeated", repeats)
    _print_list(console, "not readable", comparison.unreadable)


def print_table(console: Console, table: Table, title: str) -> None:
    """Print a whole table: at its natural width if no terminal limits it, else at least at its minimum width."""
    _say(console, title, style="bold")
    width = console.width
    whole = console.measure(table, options=console.options.update(width=WIDEST)).maximum
    least = -GAP
    for column in table.columns:
        texts = [str(column.header), *map(str, column.cells)]
        least += GAP + (max(map(len, texts)) if column.no_wrap else FOLDED)
    console.width = max(width, least if console.is_terminal else whole)
    console.print(table, markup=False, highlight=False)
    console.width = width


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with one row a group."""
    shared = comparison.monitor
    best = "best validation" if shared is None else f"validation {short_name(shared.name)} ({shared.direction})"
    table = _empty_table(comparison)
    for header in (COUNT, best, *(metric.label for metric in comparison.metrics), *WHOLE[1:]):
        table.add_column(header, justify="right", overflow="fold", no_wrap=header in WHOLE)
    for group in comparison.groups:
        count, monitored = str(len(group.runs)), str(group.spread(group.monitor))
        if group.unfinished:
            count += f" of {len(group.runs) + group.unfinished}"
        if shared is None:
            monitored = f"{short_name(group.monitor.name)} ({group.monitor.direction}) {monitored}"
        values = [str(group.spread(metric)) for metric in comparison.metrics]
        costs = [format_bytes(group.mean("bytes", "deployed")), f"{group.mean('params', 'total'):,.0f}"]
        cells = [count, monitored, *values, *costs, f"{group.mean('seconds'):.1f}"]
        table.add_row(*comparison.cells(group), *cells)
    return table


def _empty_table(comparison: Comparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in comparison.names:
        table.add_column(name, overflow="fold")
    return table


def print_notes(console: Console, comparison: Comparison) -> None:
    """Print which group is the best, and what the table does not show."""
    monitors = sorted({f"{short_name(group.monitor.name)} ({group.monitor.direction})" for group in comparison.groups})
    if len(monitors) > 1:
        told = f"The groups chose their best step by different metrics: {', '.join(monitors)}. None is called the best."
        _say(console, told)
    if len(comparison.groups) > 1 and (best := comparison.best) is not None:
        values = ", ".join(f"{metric.label} {best.spread(metric)}" for metric in comparison.metrics)
        _say(console, f"Best by validation: {comparison.label(best)}{f' ({values})' if values else ''}")
    others = [key for key in comparison.differing if key not in comparison.columns]
    if others:
        more = f" and {len(others) - SHOWN_KEYS} more" if len(others) > SHOWN_KEYS else ""
        _say(console, f"The groups also differ in: {', '.join(others[:SHOWN_KEYS])}{more}")


def paired_table(comparison: Comparison, reference: Group) -> Table | None:
    """Return a table of the differences to a group, seed by seed; None if no other group shares a seed with it."""
    others = [group for group in comparison.groups if group is not reference]
    others = [group for group in others if {*group.seeds} & {*reference.seeds}]
    if not others or not comparison.metrics:
        return None
    table = _empty_table(comparison)
    for metric in comparison.metrics:
        table.add_column(metric.label, justify="right", overflow="fold")
    for group in others:
        cells = [
            difference(reference.by_seed(metric), group.by_seed(metric), metric.direction)
            for metric in comparison.metrics
        ]
        table.add_row(*comparison.cells(group), *cells)
    return table


def _describe(run: StoredRun) -> str:
    where = "" if run.directory is None or str(run.directory) in run.name else f" ({run.directory})"
    return f"{run.name}: {run.status}, {' '.join(run.overrides)}{where}"


def _print_list(console: Console, what: str, lines: Sequence[str]) -> None:
    if lines:
        _say(console, f"\nIn no average, {what}: {len(lines)} run{'' if len(lines) == 1 else 's'}")
        for line in lines:
            _say(console, f"  {printable(line)}")


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as it is: a value in brackets is not markup."""
    console.print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write a row for each group, with every setting in which they differ, as plain numbers."""
    rows = [_row(comparison, group) for group in comparison.groups]
    write_file(path, csv_text([list(rows[0]), *(row.values() for row in rows)]))


def _row(comparison: Comparison, group: Group) -> dict[str, Any]:
    keys = list(dict.fromkeys([*comparison.columns, *comparison.differing]))
    row: dict[str, Any] = {key: show_setting(key, group.settings[key]) for key in keys}
    row |= {"n": len(group.runs), "unfinished": group.unfinished, "seeds": " ".join(map(str, group.seeds))}
    row |= {"monitor": group.monitor.name, "mode": group.monitor.direction}
    for name, metric in [("best_validation", group.monitor), *((f"{m.split}/{m.name}", m) for m in comparison.metrics)]:
        found = group.spread(metric)
        row |= {f"{name}/mean": found.mean, f"{name}/std": found.deviation, f"{name}/n": found.count}
    row |= {"bytes": group.mean("bytes", "deployed"), "parameters": group.mean("params", "total")}
    return row | {"seconds": group.mean("seconds"), "runs": " ".join(run.name for run in group.runs)}
