"""The picture of the results: test accuracy against bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.scripts.command import new_figure
from hookline.scripts.reproduction.targets import Target

FILE = Path(__file__).resolve().parents[2] / ".github" / "pictures" / "accuracy_and_bytes.png"
"""Of our own results; pages show it."""
BYTES = {"KB": 1000, "KiB": 1024}
SIZE = "size"
"""In `points` of a target: what the row's column "size" says."""
WIDTH, HEIGHT = 9.0, 3.6
"""Inches, of the picture and of a panel."""


@dataclass(frozen=True)
class Point:
    """Hold one network of a panel."""

    panel: str  # data
    label: str
    size: float  # bytes
    accuracy: float  # percent


def points_of(rows: Sequence[Mapping[str, Any]], targets: Mapping[str, Target]) -> Iterator[Point]:
    """Yield the points that targets name, of rows that were measured."""
    for row in rows:
        if (target := targets.get(row["name"])) is None:
            continue
        measured = {each["name"]: each for each in row.get("measures", ())}
        for label, (reached, size) in target.points.items():
            if not {reached, size} <= {*measured, SIZE}:
                continue  # of an older row
            mean, whole = measured[reached]["mean"], row["bytes"]
            accuracy = 100 - mean if target.measures[reached].unit.complement else mean
            if size != SIZE:
                whole = measured[size]["mean"] * BYTES[measured[size]["unit"]]
            yield Point(row["data"], label, whole, accuracy)


def write_chart(points: Sequence[Point], path: Path) -> None:
    """Write a PNG file with a panel for each set of data: accuracy in percent against bytes, on a log scale."""
    panels = list(dict.fromkeys(each.panel for each in points))
    figure = new_figure(WIDTH, HEIGHT * len(panels))
    for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        own = sorted((each for each in points if each.panel == panel), key=lambda point: point.size)
        axes.scatter([each.size for each in own], [each.accuracy for each in own], color="#1f77b4", zorder=3)
        for number, each in enumerate(own):  # above and below by turns: neighbours do not overlap
            offset = (5, 4 if number % 2 else -11)
            axes.annotate(each.label, (each.size, each.accuracy), offset, textcoords="offset points", fontsize=8)
        axes.set_xscale("log")
        axes.set_xlim(own[0].size / 1.5, own[-1].size * 4)  # labels are to the right of their points
        axes.margins(y=0.15)
        ticks = [size for size in (10**n * m for n in range(3, 8) for m in (1, 2, 5)) if _within(size, axes.get_xlim())]
        axes.set_xticks(ticks, [f"{size / 1000:,.0f} KB" for size in ticks])
        axes.minorticks_off()
        axes.set_ylabel("test accuracy, %")
        axes.set_title(panel, loc="left", fontsize=10)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]
