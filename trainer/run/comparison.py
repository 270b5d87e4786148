"""The jobs of a sweep side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.table import Table

from trainer.run.results import format_bytes, format_value, metric_rows


@dataclass(frozen=True)
class Result:
    """Hold how one job ended.

    Attributes:
        recipe: the recipe's name.
        overrides: the job's, one value each.
        summary: what its summary.json holds; empty when the job did not come to its end.
        status: what stands in the place of the seconds where there is no summary.
    """

    recipe: str
    overrides: Sequence[str]
    summary: Mapping[str, Any] = field(default_factory=dict)
    status: str = "failed"


def comparison_table(results: Sequence[Result]) -> Table:
    """Return a table with one row a job, in the order in which they ran.

    Overrides that all jobs share are left out, since they tell none apart; the loss is, where there is a metric.

    Args:
        results: at least one.
    """
    rows = [{name: (validation, test) for name, _, validation, test in metric_rows(each.summary)} for each in results]
    names = list(dict.fromkeys(name for row in rows for name in row))
    metrics = [name for name in names if name.rpartition("/")[2] != "loss"] or names
    own = [" ".join(own_overrides(each, results)) for each in results]
    table = Table(box=box.SIMPLE_HEAD, title="Comparison", title_justify="left", show_edge=False)
    for name in ("recipe", *(["overrides"] if any(own) else [])):
        table.add_column(name, overflow="fold")
    for name in (*(f"{split} {name}" for name in metrics for split in ("validation", "test")), "size", "seconds"):
        table.add_column(name, justify="right", min_width=10 if name == "size" else 7)
    for result, overrides, row in zip(results, own, rows, strict=True):
        values = [value for name in metrics for value in row.get(name, (None, None))]
        cells = [format_value(value) for value in values] + _cells(result)
        table.add_row(result.recipe, *([overrides] if any(own) else []), *cells)
    return table


def own_overrides(result: Result, results: Sequence[Result]) -> list[str]:
    """Return the overrides of a job that not all jobs have; the recipe has a column of its own.

    Args:
        result: the job.
        results: all jobs.
    """
    shared = set.intersection(*(set(other.overrides) for other in results))
    return [each for each in result.overrides if each not in shared and not each.startswith("recipe=")]


def _cells(result: Result) -> list[str]:
    """Return size and seconds; how the job ended where it has no summary."""
    summary = result.summary
    if not summary:
        return ["-", result.status]
    return [format_bytes(summary["bytes"]["deployed"]), f"{summary['seconds']:.1f}"]
