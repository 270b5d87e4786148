"""What was measured, as figures and as tables."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline.scripts.benchmarks.contender import STEPS, Contender
from hookline.scripts.command import new_figure, plain_table

PUBLISHED = {
    "V100": 15.7e12,
    "T4": 8.1e12,
    "A100": 156e12,
    "L4": 60.5e12,
    "H100 PCIe": 378e12,
    "H100": 494.7e12,
    "H200": 494.7e12,
}
"""Floating-point operations a second on dense float32 matrices, by the makers' data sheets; in TF32 where they can."""


@dataclass
class Result:
    """Hold what was measured of a contender."""

    contender: Contender  # which
    speeds: list[float] = field(default_factory=list)  # units of work a second, one for each repeat, in order
    facts: dict[str, Any] = field(default_factory=dict)  # what it reported
    batch_size: int = 0  # examples a batch


def as_rows(results: Sequence[Result], peak: float | None = None) -> list[dict[str, Any]]:
    """Return the figures of each contender: JSON values.

    "median", "lowest" and "highest" are units of work a second; "ratio" is the median, over the repeats, of how many
    times the baseline of its case it did in the same repeat, "of_limit" likewise of the limit. The baseline is the
    fastest of those that may be it; where none of them took part, it is the first contender. "loss" is that of the
    training. "products" are the multiplications with an addition that dense layers and convolutions take for an
    example, forward and backward; a contender that does not report them has those of the baseline, the limit or the
    first contender. "use" is the share of the peak that they take: 2 operations x products x examples a second / peak.
    What is not known is None.
    """
    rows = []
    for case in dict.fromkeys(each.contender.case for each in results):
        own = [each for each in results if each.contender.case == case]
        baseline = max((each for each in own if each.contender.baseline), key=_median, default=own[0])
        limit = max((each for each in own if each.contender.limit), key=_median, default=None)
        products = baseline.facts.get("products", (limit or own[0]).facts.get("products"))
        rows += [_row(each, baseline, limit, each.facts.get("products", products), peak) for each in own]
    return rows


def _median(result: Result) -> float:
    return statistics.median(result.speeds)


def _ratio(result: Result, other: Result) -> float:
    return statistics.median(own / base for own, base in zip(result.speeds, other.speeds, strict=True))


def _row(
    result: Result, baseline: Result, limit: Result | None, products: int | None, peak: float | None
) -> dict[str, Any]:
    contender, median = result.contender, _median(result)
    examples = median * result.batch_size if contender.unit == STEPS else None
    used = 2 * products * examples if examples and products else None
    note = result.facts.get("note")
    return {
        "case": contender.case,
        "contender": f"{contender.name} ({note})" if note else contender.name,
        "unit": f"{contender.unit}/s",
        "median": median,
        "lowest": min(result.speeds),
        "highest": max(result.speeds),
        "ratio": _ratio(result, baseline),
        "of_limit": None if limit is None else _ratio(result, limit),
        "images": examples,
        "loss": result.facts.get("loss"),
        "loss_steps": contender.loss_steps or None,
        "products": products,
        "use": used / peak if used and peak else None,
        "baseline": result is baseline,
        "limit": contender.limit,
        "speeds": result.speeds,
    }


def find_peak(results: Sequence[Result], accelerator: str = "", given: float | None = None) -> tuple[float | None, str]:
    """Return the floating-point operations a second that the machine reaches at most, and where that comes from."""
    if given is not None:
        return given, "as given"
    words = re.split(r"\W|_", accelerator)
    for name, published in PUBLISHED.items():
        if all(part in words for part in name.split()):
            return published, f"published for {name}"
    measured = max((each.facts.get("peak", 0.0) for each in results), default=0.0)
    return (measured, "measured on products of matrices") if measured else (None, "")


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for each case."""
    from hookline.hooks.monitors.console import open_console

    console = open_console()
    for case, own in _by_case(rows).items():
        columns = {case: [f"{row['contender']} *" if row["baseline"] else row["contender"] for row in own]}
        columns |= _columns(own)
        console.print()
        console.print(plain_table(columns, zip(*columns.values(), strict=True)), markup=False)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the columns of a case, each with its cells; those that nobody fills are left out.

    How much arithmetic there is shows where it differs.
    """
    same = len({row["products"] for row in rows}) == 1
    steps = max((row["loss_steps"] or 0 for row in rows), default=0)
    columns = {
        rows[0]["unit"]: [f"{row['median']:,.1f}" for row in rows],
        "lowest to highest": [f"{row['lowest']:,.1f} to {row['highest']:,.1f}" for row in rows],
        "images/s": [_cell(row["images"], ",.0f") for row in rows],
        f"loss, step {steps}": [_cell(row["loss"], ".3f") for row in rows],
        "products": ["" if same else _cell(row["products"], ",d") for row in rows],
        "times *": [f"{row['ratio']:.2f}" for row in rows],
        "limit": [_cell(row["of_limit"], ".0%") for row in rows],
        "peak": [_cell(row["use"], ".1%") for row in rows],
    }
    return {name: cells for name, cells in columns.items() if any(cells)}


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


COLOURS = {"limit": "#f2c14e", "baseline": "#d1495b", "ours": "#1b6ca8", "others": "#a9b4c2"}
WIDTH, BAR, HEAD = 10.0, 0.32, 1.0
"""Of the picture, of a bar with its distance, and of a panel's title, in inches."""


def write_chart(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG file with a panel for each case: medians as bars, with lines from the lowest to the highest."""
    cases = _by_case(rows)
    heights = [HEAD + BAR * len(own) for own in cases.values()]
    figure = new_figure(WIDTH, sum(heights))
    panels = figure.subplots(len(cases), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, (case, own) in zip(panels[:, 0], cases.items(), strict=True):
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
        axes.set_title(f"{case}: {own[0]['unit']} (times '{base}')", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _colour(row: Mapping[str, Any]) -> str:
    kind = "ours" if row["contender"].startswith("hookline") else "others"
    return COLOURS["limit" if row["limit"] else "baseline" if row["baseline"] else kind]


def _by_case(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    cases = dict.fromkeys(row["case"] for row in rows)
    return {case: [row for row in rows if row["case"] == case] for case in cases}
