"""What was measured, as figures, as tables and as a chart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.scripts.command import new_figure, plain_table

if TYPE_CHECKING:
    from hookline.scripts.benchmarks.contender import Worker

Row = dict[str, Any]


def as_rows(results: Sequence[Worker], peak: float | None = None) -> list[Row]:
    """Return the figures of the contenders of one case, as JSON values.

    "ratio" and "of_limit" are medians, over the turns, of the speed relative to the baseline and to the limit in the
    same turn; "ratio_quartiles" are the lower and the upper quartile. The baseline is the fastest of those that may be
    it; the first contender where none of them took part. "use" is the share of the peak: 2 operations x products x
    examples a second / peak. What is unknown is None.
    """
    baseline = max((each for each in results if each.contender.baseline), key=_median, default=results[0])
    limit = max((each for each in results if each.contender.limit), key=_median, default=None)
    rows = []
    for each in results:
        products = each.products or baseline.products or (limit or results[0]).products
        operations = 2 * products * each.settings.batch_size * _median(each) if products else None
        rows.append(
            {
                "case": each.contender.case,
                "contender": each.contender.name,
                "unit": "steps/s" if each.contender.what == "training" else "batches/s",
                "median": _median(each),
                "lowest": min(each.speeds),
                "highest": max(each.speeds),
                "ratio": (ratio := _quartiles(each, baseline))[1],
                "ratio_quartiles": ratio[::2],
                "of_limit": None if limit is None else _quartiles(each, limit)[1],
                "products": products,
                "use": operations / peak if operations and peak else None,
                "baseline": each is baseline,
                "limit": each.contender.limit,
                "speeds": each.speeds,
            }
        )
    return rows


def _median(result: Worker) -> float:
    return statistics.median(result.speeds)


def _quartiles(result: Worker, other: Worker) -> list[float]:
    """Return the lower quartile, the median and the upper quartile of the ratios of two speeds."""
    ratios = [own / base for own, base in zip(result.speeds, other.speeds, strict=True)]
    return statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * ratios


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of a case; columns without a value are left out."""
    from hookline.hooks.monitors.console import open_console

    differ = len({row["products"] for row in rows}) > 1
    columns = {
        rows[0]["case"]: [f"{row['contender']} *" if row["baseline"] else row["contender"] for row in rows],
        rows[0]["unit"]: [f"{row['median']:,.1f}" for row in rows],
        "products": [_cell(row["products"], ",d") if differ else "" for row in rows],
        "times *": [f"{row['ratio']:.2f}" for row in rows],
        "quartiles": ["{:.2f} to {:.2f}".format(*row["ratio_quartiles"]) for row in rows],
        "limit": [_cell(row["of_limit"], ".0%") for row in rows],
        "peak": [_cell(row["use"], ".1%") for row in rows],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    console = open_console()
    console.print()
    console.print(plain_table(filled, zip(*filled.values(), strict=True)), markup=False)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


LIMIT, BASELINE, OURS, OTHERS = "#f2c14e", "#d1495b", "#1b6ca8", "#a9b4c2"
"""Colours of bars."""


def write_chart(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG file with a panel for each case: medians as bars, with lines from the lowest to the highest."""
    cases = [[row for row in rows if row["case"] == case] for case in dict.fromkeys(row["case"] for row in rows)]
    heights = [1.0 + 0.32 * len(own) for own in cases]
    figure = new_figure(10.0, sum(heights))
    panels = figure.subplots(len(cases), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, own in zip(panels[:, 0], cases, strict=True):
        places, medians = range(len(own)), [row["median"] for row in own]
        spread = [[row["median"] - row["lowest"] for row in own], [row["highest"] - row["median"] for row in own]]
        axes.barh(places, medians, height=0.7, color=[_colour(row) for row in own])
        axes.errorbar(medians, places, xerr=spread, fmt="none", ecolor="#333333", elinewidth=1, capsize=2)
        for place, row in enumerate(own):
            axes.text(row["highest"], place, f"  {row['median']:,.1f}  ({row['ratio']:.2f})", va="center", fontsize=8)
        axes.set_yticks(places, [row["contender"] for row in own], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.18 * max(row["highest"] for row in own))
        (base,) = [row["contender"] for row in own if row["baseline"]]
        axes.set_title(f"{own[0]['case']}: {own[0]['unit']} (times '{base}')", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _colour(row: Mapping[str, Any]) -> str:
    if row["limit"] or row["baseline"]:
        return LIMIT if row["limit"] else BASELINE
    return OURS if row["contender"].startswith("hookline") else OTHERS
