"""A comparison as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table

from hookline.scripts.comparison.comparison import COUNT, Comparison, Group, difference
from hookline.scripts.comparison.runs import Metric, StoredRun
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
    print_left_out(console, comparison)


def print_table(console: Console, table: Table, title: str) -> None:
    """Print a whole table: at its natural width if no terminal limits it, else at least at its minimum width."""
    _say(console, title, style="bold")
    width = console.width
    whole = console.measure(table, options=console.options.update(width=WIDEST)).maximum
    least = sum(_least_width(column) + GAP for column in table.columns) - GAP
    console.width = max(width, least if console.is_terminal else whole)
    console.print(table, markup=False, highlight=False)
    console.width = width


def comparison_table(comparison: Comparison, reference: Group | None = None) -> Table:
    """Return a table with one row a group."""
    shared = comparison.monitor
    best = "best validation" if shared is None else f"validation {short_name(shared.name)} ({shared.direction})"
    table = _empty_table()
    for name in comparison.names:
        table.add_column(name, overflow="fold")
    labels = [metric.label for metric in comparison.metrics]
    if reference is not None:
        labels += [f"{label}: difference" for label in labels]
    for header in (COUNT, best, *labels, *WHOLE[1:]):
        table.add_column(header, justify="right", overflow="fold", no_wrap=header in WHOLE)
    for group in comparison.groups:
        cells = [_count(group), _monitored(group, shared)]
        cells += [str(group.spread(metric)) for metric in comparison.metrics]
        if reference is not None:
            cells += _differences(reference, group, comparison.metrics)
        table.add_row(*comparison.cells(group), *cells, *_costs(group))
    return table


def _least_width(column: Column) -> int:
    texts = [str(column.header), *map(str, column.cells)]
    return max(map(len, texts)) if column.no_wrap else FOLDED


def _empty_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))


def _count(group: Group) -> str:
    """Return how many runs are averaged; of how many, where some did not come to their end."""
    count = len(group.runs)
    return f"{count} of {count + group.unfinished}" if group.unfinished else str(count)


def _monitored(group: Group, shared: Metric | None) -> str:
    text = str(group.spread(group.monitor))
    return text if shared is not None else f"{short_name(group.monitor.name)} ({group.monitor.direction}) {text}"


def _costs(group: Group) -> list[str]:
    sizes = (format_bytes(group.mean("bytes", "deployed")), f"{group.mean('params', 'total'):,.0f}")
    return [*sizes, f"{group.mean('seconds'):.1f}"]


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
    table = _empty_table()
    for name in comparison.names:
        table.add_column(name, overflow="fold")
    for metric in comparison.metrics:
        table.add_column(metric.label, justify="right", overflow="fold")
    for group in others:
        table.add_row(*comparison.cells(group), *_differences(reference, group, comparison.metrics))
    return table


def _differences(reference: Group, other: Group, metrics: Sequence[Metric]) -> list[str]:
    """Return how a group differs from a reference, one text for each metric; nothing of the reference itself."""
    if other is reference:
        return [""] * len(metrics)
    return [
        difference(reference.by_seed(metric), other.by_seed(metric)).describe(metric.direction) for metric in metrics
    ]


def print_left_out(console: Console, comparison: Comparison) -> None:
    """Print what is in no average."""
    _print_list(console, "not at their end", [_describe(run) for run in comparison.unfinished])
    repeats = [f"{run.name}: a later run has the same settings and seed {run.seed}" for run in comparison.repeated]
    _print_list(console, "repeated", repeats)
    _print_list(console, "not readable", comparison.unreadable)


def _describe(run: StoredRun) -> str:
    where = "" if run.directory is None or str(run.directory) in run.name else f" ({run.directory})"
    return f"{run.name}: {run.status}, {' '.join(run.overrides)}{where}"


def _print_list(console: Console, what: str, lines: Sequence[str]) -> None:
    if lines:
        _say(console, f"\nIn no average, {what}: {len(lines)} run{'' if len(lines) == 1 else 's'}")
        for line in lines:
            _say(console, f"  {printable(line)}")


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as it is: a value in brackets is no markup."""
    console.print(text, style=style, markup=False, highlight=False, emoji=False, soft_wrap=True)
