"""Curves of groups of runs as a picture: a panel for each metric, a colour for each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Curves:
    """What one metrics.jsonl says of some metrics."""

    values: dict[tuple[str, str], Curve]  # by split and name of the metric
    damaged: int  # lines that could not be read; one that was cut off at the end is not counted


def read_curves(directory: Path, names: Sequence[str]) -> Curves:
    """Return the curves of a run."""
    values: dict[tuple[str, str], Curve] = {}
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
                values.setdefault((split, name), {})[step] = value
    return Curves(values, damaged)


@dataclass(frozen=True)
class Band:
    """The mean of curves where all of them have a value."""

    steps: np.ndarray  # int [points]
    mean: np.ndarray  # float [points]
    deviation: np.ndarray  # float [points], the standard deviation (divided by n - 1); 0 for a lone curve


def average(curves: Sequence[Curve]) -> Band:
    """Return the mean of curves over the steps that all of them have."""
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[step] for step in steps] for curve in curves], dtype=float)
    deviation = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(steps))
    return Band(np.array(steps, dtype=int), values.mean(axis=0), deviation)


def tail(curve: Curve, band: Band) -> Curve:
    """Return the end of a curve beyond a mean, from the mean's last step on; empty if it ends there."""
    last = int(band.steps[-1]) if len(band.steps) else -1
    rest = {step: value for step, value in curve.items() if step >= last}
    return rest if len(rest) > 1 else {}


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
    names = _names(comparison)
    curves, notes = _read(groups, names)
    if len(comparison.groups) > len(groups):
        notes.insert(0, f"The chart shows the first {len(groups)} of {len(comparison.groups)} groups.")
    figure = new_figure(WIDTH, HEIGHT * len(names))
    panels = figure.subplots(len(names), 1, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        for colour, group in zip(COLOURS, groups, strict=False):
            found = [curves[run.name] for run in group.runs if run.name in curves]
            _draw(axes, name, comparison.label(group), found, colour)
        _dress(axes, name)
    figure.savefig(path, dpi=110, format="png")
    return notes


def _names(comparison: Comparison) -> list[str]:
    """Return the metrics with a panel: those that are compared, and those that decided which step is the best."""
    compared = [metric.name for metric in comparison.metrics]
    return list(dict.fromkeys([*compared, *(group.monitor.name for group in comparison.groups)]))


def _read(groups: Sequence[Group], names: Sequence[str]) -> tuple[dict[str, Curves], list[str]]:
    curves, notes = {}, []
    for run in (run for group in groups for run in group.runs):
        try:
            found = read_curves(run.directory or Path(), names)
        except OSError as error:
            notes.append(f"Not in the chart: {run.name} ({error.filename}: {error.strerror})")
            continue
        if not found.values:
            notes.append(f"Not in the chart: {run.name} (its metrics.jsonl has none of: {', '.join(names)})")
            continue
        curves[run.name] = found
        if found.damaged:
            notes.append(f"{run.name}: {found.damaged} damaged lines of metrics.jsonl were left out")
    return curves, notes


def _draw(axes: Any, name: str, label: str, runs: Sequence[Curves], colour: str) -> None:
    for split, style in STYLES.items():
        curves: list[Curve] = [run.values[split, name] for run in runs if (split, name) in run.values]
        if not curves:
            continue
        band = average(curves)
        marker = "o" if len(band.steps) == 1 else None
        text = f"{label} (n={len(curves)})" if split == "validation" else None
        axes.plot(band.steps, band.mean, style, color=colour, linewidth=1.6, marker=marker, label=text)
        low, high = band.mean - band.deviation, band.mean + band.deviation
        axes.fill_between(band.steps, low, high, color=colour, alpha=0.15, linewidth=0)
        for curve in curves:
            rest = tail(curve, band)
            axes.plot(np.array([*rest]), np.array([*rest.values()]), style, color=colour, linewidth=0.6)


def _dress(axes: Any, name: str) -> None:
    axes.set_title(f"{short_name(name)}: solid validation, dashed training", loc="left", fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    if "loss/" in name and all((line.get_ydata() > 0).all() for line in axes.get_lines() if len(line.get_ydata())):
        axes.set_yscale("log")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)
