"""The report of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hookline.deploy.formats import put_in_place
from hookline.scripts.command import csv_text, new_figure, plain_table
from hookline.scripts.evaluation.measures import Measures, Reliability
from hookline.trainer.errors import printable
from hookline.trainer.run.results import format_value, is_metric, is_total_loss, short_name

MOST_NUMBERED = 25
"""Classes with their counts in the picture."""
MOST_NAMED = 60
"""Classes with their names beside the picture."""
CELL, LEAST, LARGEST = 0.42, 4.5, 14.0
"""Of a class, and of the picture, in inches."""
BAR, LESS, MORE, LINE = "#1b6ca8", "#8fc1a9", "#e39ba5", "#555555"
LONGEST_NAME = 18


def write_confusion(confusion: np.ndarray, names: Sequence[str], title: str, path: Path) -> None:
    """Write a PNG file: a row for each true class, coloured by the share that goes to each predicted class."""
    side = min(max(LEAST, CELL * len(names) + 2.0), LARGEST)
    figure = new_figure(side + 0.8, side)
    small = 9.0 if confusion.max(initial=0) < 1000 and len(confusion) <= 12 else 7.0
    axes = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    if len(names) <= MOST_NUMBERED:
        for (row, column), count in np.ndenumerate(confusion):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize=small)
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
    """Write a PNG file: accuracy by confidence, its distance from the diagonal, and how many examples a bin has."""
    figure = new_figure(6.0, 6.0)
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


def _short(name: str) -> str:
    shown = printable(name)
    return _written(shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 3]}...")


def _written(text: str) -> str:
    """Return a text that a picture shows as it is written, and not as a formula."""
    return printable(text).replace("$", r"\$")


FILE_NAME = "evaluation.json"
MOST_CLASSES = 20
"""Classes with a line on the screen; if there are more, the worst ones."""
SHARES, COUNTS = ("precision", "recall", "f1"), ("support", "predicted")


def write_evaluation(
    directory: Path, facts: Mapping[str, Any], measures: Measures | None, names: Sequence[str]
) -> list[str]:
    """Write a folder under another name and rename it, so that it exists as a whole or not at all."""
    with put_in_place(directory) as temporary:
        temporary.mkdir()
        content = {**facts, **({} if measures is None else measures.as_json())}
        (temporary / FILE_NAME).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        if measures is not None:
            _write_classes(measures, names, str(facts["title"]), temporary)
    return sorted(each.name for each in directory.iterdir())


def _write_classes(measures: Measures, names: Sequence[str], title: str, folder: Path) -> None:
    rows = [list(measures.classes[0]), *(each.values() for each in measures.classes)]
    (folder / "classes.csv").write_text(csv_text(rows), encoding="utf-8")
    confusion = [[name, *row] for name, row in zip(names, measures.confusion.tolist(), strict=True)]
    (folder / "confusion.csv").write_text(csv_text([["true \\ predicted", *names], *confusion]), encoding="utf-8")
    accuracy = f"{title}: accuracy {100 * measures.overall['accuracy']:.2f} %"
    write_confusion(measures.confusion, names, accuracy, folder / "confusion.png")
    error = measures.overall["expected_calibration_error"]
    write_reliability(measures.reliability, error, title, folder / "calibration.png")


def print_evaluation(
    facts: Mapping[str, Any], measures: Measures | None, directory: Path, files: Sequence[str]
) -> None:
    """Print what was measured, and where it lies."""
    from hookline.hooks.monitors.console import open_console

    console = open_console()
    console.print(str(facts["title"]), style="bold", soft_wrap=True)
    for name, value in _shown(facts["metrics"]) if measures is None else _overall(measures.overall):
        console.print(f"{name:<28}{value}")
    if measures is not None:
        many = len(measures.classes) > MOST_CLASSES
        classes = [each for each in measures.classes if each["support"] or not many]
        if many:
            classes = sorted(classes, key=lambda each: each["f1"])[:MOST_CLASSES]
        cells = [[f"{each[name]:.4f}" for name in SHARES] + [f"{each[name]:,}" for name in COUNTS] for each in classes]
        rows = [(printable(each["class"]), *row) for each, row in zip(classes, cells, strict=True)]
        console.print()
        console.print(plain_table(("class", *SHARES, *COUNTS), rows))
        if many:
            console.print(f"The {MOST_CLASSES} of {len(measures.classes)} classes with the lowest f1.")
    console.print(f"{directory}: {', '.join(files)}", soft_wrap=True)


def _shown(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield what a recipe measured, as text."""
    for name, value in metrics.items():
        if is_metric(name) or is_total_loss(name):
            yield short_name(name), format_value(value)


def _overall(overall: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for name, value in overall.items():
        yield name.replace("_", " "), f"{value:,}" if isinstance(value, int) else format_value(value)
