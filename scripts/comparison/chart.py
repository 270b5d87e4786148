"""Curves of groups of runs as a picture: a panel for each metric, a colour for each group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hookline.scripts.command import new_figure
from hookline.scripts.comparison.comparison import Comparison, Group
from hookline.scripts.comparison.runs import number
from hookline.trainer.files import parse_json, read_lines
from hookline.trainer.run.results import short_name

FILE_NAME = "metrics.jsonl"
Curve = dict[int, float]
"""Values by step."""
Curves = dict[tuple[str, str], Curve]
"""Of one run, by split and name of the metric."""


def read_curves(directory: Path, names: Sequence[str]) -> tuple[Curves, int]:
    """Return the curves of a run, and how many lines could not be read; one that was cut off is not counted."""
    curves: Curves = {}
    damaged = 0
    for line in read_lines(directory / FILE_NAME):
        if not line.endswith("\n"):
            break  # cut off
        try:
            report = parse_json(line)
            step, split = int(report["step"]), str(report["split"])
        except (ValueError, KeyError, TypeError, OverflowError):
            damaged += 1
            continue
        for name in names:
            if (value := number(report.get(name))) is not None:
                curves.setdefault((split, name), {})[step] = value
    return curves, damaged


def average(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steps that all curves have, int [points], and there their mean and standard deviation.

    The deviation is divided by n - 1; it is 0 for a lone curve.
    """
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[step] for step in steps] for curve in curves], dtype=float)
    deviation = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(steps))
    return np.array(steps, dtype=int), values.mean(axis=0), deviation


COLOURS = ["#1b6ca8", "#d1495b", "#2e933c", "#f2a541", "#7d5ba6", "#00a6a6", "#8c564b", "#e377c2", "#7f7f7f", "#a9b4c2"]
"""One for each group that is drawn; more would be indistinguishable."""
STYLES = {"validation": "-", "train": "--"}
WIDTH, HEIGHT = 10.0, 4.2
"""Of a panel, in inches."""


def write_chart(comparison: Comparison, path: Path) -> list[str]:
    """Write a PNG file: the mean over seeds as a line with a band of one standard deviation.

    A mean is drawn as far as all runs of its group go; longer runs continue as thin lines.
    """
    groups = comparison.groups[: len(COLOURS)]
    compared = [metric.name for metric in comparison.metrics]  # and what decided which step is the best
    names = list(dict.fromkeys([*compared, *(group.monitor.name for group in comparison.groups)]))
    curves, notes = _read(groups, names)
    if len(comparison.groups) > len(groups):
        notes.insert(0, f"The chart shows the first {len(groups)} of {len(comparison.groups)} groups.")
    figure = new_figure(WIDTH, HEIGHT * len(names))
    panels = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        for colour, group in zip(COLOURS, groups, strict=False):
            found = [curves[run.name] for run in group.runs if run.name in curves]
            _draw(axes, name, comparison.label(group), found, colour)
        axes.set_title(f"{short_name(name)}: solid validation, dashed training", loc="left", fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        lines = [line.get_ydata() for line in axes.get_lines()]
        if "loss/" in name and all((line > 0).all() for line in lines if len(line)):
            axes.set_yscale("log")
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=110, format="png")
    return notes


def _read(groups: Sequence[Group], names: Sequence[str]) -> tuple[dict[str, Curves], list[str]]:
    curves, notes = {}, []
    for run in (run for group in groups for run in group.runs):
        try:
            found, damaged = read_curves(run.directory or Path(), names)
        except OSError as error:
            notes.append(f"Not in the chart: {run.name} ({error.filename}: {error.strerror})")
            continue
        if not found:
            notes.append(f"Not in the chart: {run.name} (its metrics.jsonl has none of: {', '.join(names)})")
            continue
        curves[run.name] = found
        if damaged:
            notes.append(f"{run.name}: {damaged} damaged lines of metrics.jsonl were left out")
    return curves, notes


def _draw(axes: Any, name: str, label: str, runs: Sequence[Curves], colour: str) -> None:
    for split, style in STYLES.items():
        curves = [run[split, name] for run in runs if (split, name) in run]
        if not curves:
            continue
        steps, mean, deviation = average(curves)
        marker = "o" if len(steps) == 1 else None
        text = f"{label} (n={len(curves)})" if split == "validation" else None
        axes.plot(steps, mean, style, color=colour, linewidth=1.6, marker=marker, label=text)
        axes.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
        for curve in curves:  # those that go on beyond the mean
            rest = {step: value for step, value in curve.items() if not len(steps) or step >= steps[-1]}
            if len(rest) > 1:
                axes.plot([*rest], [*rest.values()], style, color=colour, linewidth=0.6)
