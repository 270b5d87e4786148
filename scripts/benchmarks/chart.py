"""The figures as a bar chart: a panel for each case, a bar for each contender."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, BASELINE, OTHERS, LIMIT = "#1b6ca8", "#d1495b", "#a9b4c2", "#f2c14e"
WIDTH, BAR, HEAD = 10.0, 0.32, 1.0
"""Of the picture, of a bar with its distance, and of a panel's title, in inches."""


def write_chart(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG file: medians as bars, with lines from the lowest to the highest."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(row["case"] for row in rows))
    groups = [[row for row in rows if row["case"] == case] for case in cases]
    heights = [HEAD + BAR * len(group) for group in groups]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(groups), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, case, group in zip(panels[:, 0], cases, groups, strict=True):
        _draw(axes, case, group)
    figure.savefig(path, dpi=110)


def _draw(axes: Any, case: str, rows: Sequence[Mapping[str, Any]]) -> None:
    places = range(len(rows))
    medians = [row["median"] for row in rows]
    spread = [[row["median"] - row["lowest"] for row in rows], [row["highest"] - row["median"] for row in rows]]
    axes.barh(places, medians, height=0.7, color=[_colour(row) for row in rows])
    axes.errorbar(medians, places, xerr=spread, fmt="none", ecolor="#333333", elinewidth=1, capsize=2)
    for place, row in zip(places, rows, strict=True):
        axes.text(row["highest"], place, f"  {row['median']:,.1f}  ({row['ratio']:.2f})", va="center", fontsize=8)
    axes.set_yticks(places, [row["contender"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(row["highest"] for row in rows))
    (base,) = [row["contender"] for row in rows if row["baseline"]]
    axes.set_title(f"{case}: {rows[0]['unit']} (times '{base}')", loc="left", fontsize=10)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(row: Mapping[str, Any]) -> str:
    if row["limit"]:
        return LIMIT
    if row["baseline"]:
        return BASELINE
    return OURS if row["contender"].startswith("hookline") else OTHERS
