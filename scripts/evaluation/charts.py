"""The confusion matrix and the reliability diagram as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.evaluation.calibration import Reliability
from trainer.errors import printable

MOST_NUMBERED = 25
"""Classes with their counts in the picture."""
MOST_NAMED = 60
"""Classes with their names beside the picture."""
CELL, LEAST, LARGEST = 0.42, 4.5, 14.0
"""Of a class, and of the picture, in inches."""
BAR, LESS, MORE, LINE = "#1b6ca8", "#8fc1a9", "#e39ba5", "#555555"
LONGEST_NAME = 18


def write_confusion(confusion: np.ndarray, names: Sequence[str], title: str, path: Path) -> None:
    """Write a PNG file: a row for each true class, coloured by the share that goes to each predicted class.

    Args:
        confusion: int [classes, classes], rows the true classes.
        names: of the classes.
        title: above the picture.
        path: of the file.

    Raises:
        OSError: it cannot be written.
    """
    figure = _figure(min(max(LEAST, CELL * len(names) + 2.0), LARGEST))
    axes = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    if len(names) <= MOST_NUMBERED:
        for (row, column), count in np.ndenumerate(confusion):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=_small(confusion))
    ticks = range(len(names)) if len(names) <= MOST_NAMED else ()
    shown = [_short(names[each]) for each in ticks]
    long = max(map(len, shown), default=0) > 3
    axes.set_xticks(list(ticks), shown, rotation=90 if long else 0, fontsize=8)
    axes.set_yticks(list(ticks), shown, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(_written(title), fontsize=10, loc="left")
    figure.savefig(path, dpi=110, format="png")


def write_reliability(bins: Reliability, error: float, title: str, path: Path) -> None:
    """Write a PNG file: accuracy by confidence, its distance from the diagonal, and how many examples a bin has.

    Args:
        bins: of the predictions.
        error: the expected calibration error.
        title: above the picture.
        path: of the file.

    Raises:
        OSError: it cannot be written.
    """
    figure = _figure(5.2, 6.0)
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    width = np.diff(bins.edges)
    used = bins.counts > 0
    left = bins.edges[:-1][used]
    bar = {"width": width[used], "align": "edge", "edgecolor": "white", "linewidth": 0.5}
    accuracy, confidence = bins.accuracy[used], bins.confidence[used]
    upper.bar(left, np.minimum(accuracy, confidence), color=BAR, label="right as often as it says", **bar)
    upper.bar(left, np.maximum(accuracy - confidence, 0), bottom=confidence, color=LESS, label="more often", **bar)
    upper.bar(left, np.maximum(confidence - accuracy, 0), bottom=accuracy, color=MORE, label="less often", **bar)
    upper.plot([0, 1], [0, 1], "--", color=LINE, linewidth=1)
    upper.set_ylabel("accuracy")
    upper.set_xlim(0, 1)
    upper.set_ylim(0, 1)
    upper.set_title(f"{_written(title)}\nexpected calibration error {100 * error:.2f} %", fontsize=10, loc="left")
    upper.legend(fontsize=8, frameon=False, loc="upper left")
    lower.bar(left, bins.counts[used], color=BAR, **bar)
    lower.set_ylabel("examples")
    lower.set_xlabel("confidence")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=110, format="png")


def _figure(width: float, height: float | None = None) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width + 0.8, width if height is None else height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _small(confusion: np.ndarray) -> float:
    return 9.0 if confusion.max(initial=0) < 1000 and len(confusion) <= 12 else 7.0


def _short(name: str) -> str:
    shown = printable(name)
    return _written(shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 3]}...")


def _written(text: str) -> str:
    """Return a text that a picture shows as it is written, and not as a formula."""
    return printable(text).replace("$", r"\$")
