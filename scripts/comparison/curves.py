"""The curves of runs, from their metrics.jsonl, and their mean over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hookline.scripts.comparison.runs import number
from hookline.trainer.files import parse_json, read_lines

FILE_NAME = "metrics.jsonl"
Curve = dict[int, float]
"""Values by step."""


@dataclass(frozen=True)
class Curves:
    """Hold what one metrics.jsonl says of some metrics.

    Attributes:
        values: by split and name of the metric.
        damaged: lines that could not be read; one that was cut off at the end is not counted.
    """

    values: dict[tuple[str, str], Curve]
    damaged: int


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
    """Hold the mean of curves where all of them have a value.

    Attributes:
        steps: int [points].
        mean: float [points].
        deviation: float [points], the standard deviation (divided by n - 1); 0 for a lone curve.
    """

    steps: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


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
