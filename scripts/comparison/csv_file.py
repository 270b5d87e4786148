"""A comparison as a CSV file: a row for each group, every setting in which they differ, plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookline.scripts.comparison.comparison import Comparison, Group
from hookline.scripts.csv_text import csv_text
from hookline.trainer.config.settings import show_setting
from hookline.trainer.files import write_whole


def write_csv(comparison: Comparison, path: Path) -> None:
    """Write the table."""
    rows = [_row(comparison, group) for group in comparison.groups]
    write_whole(path, csv_text([list(rows[0]), *(row.values() for row in rows)]))


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
