"""What is wrong with the metric that decides which step is the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hookline.trainer.run.results import format_value, short_name

if TYPE_CHECKING:
    from hookline.trainer.run.control import Run


METRIC = "metric"
LARGER_IS_BETTER = ("accuracy", "recall@", "map@", "precision@", "coverage")
EQUAL_EVALUATIONS = 5
"""This many equal values of a metric in a row, from the first one on, are no accident."""
LEAST_LEFT = 0.05
"""Share of a run that must be left for training once masks and quantization are final. Measured on digits: with 97 %
sparsity, masks that are final at the end give 86.4 % accuracy, at half of the run 93.3 %; with 90 %, 97.2 and 97.8
%."""
TRIAL_STEPS = 100
"""A shorter run is only a smoke test."""


def direction_advice(monitor: str, mode: str) -> str | None:
    """Return a line on a monitor whose worst value would count as the best; None if all is well."""
    last = monitor.rpartition("/")[2]
    is_loss = monitor.startswith("loss/") or "/loss/" in monitor
    if is_loss and mode == "max":
        return f"trainer.monitor={monitor} with monitor_mode=max keeps the step with the highest loss. {_set('min')}"
    if any(last.endswith(name) or last.startswith(name) for name in LARGER_IS_BETTER) and not is_loss and mode == "min":
        return f"trainer.monitor={monitor} with monitor_mode=min keeps the step with the lowest {last}. {_set('max')}"
    return None


def _set(mode: str) -> str:
    return f"Set trainer.monitor_mode={mode}."


def constant_advice(monitor: str, values: Sequence[float]) -> str | None:
    """Return a line on a monitor that never changes, so that the first evaluation remains the best."""
    if len(values) < EQUAL_EVALUATIONS or len(set(values)) > 1 or values[0] == 1.0 or not math.isfinite(values[0]):
        return None
    return (
        f"{short_name(monitor)} was {format_value(values[0])} in each of {len(values)} evaluations, so the first "
        "stays the best. Does the network learn? If so, monitor what changes"
        + (f", such as {remedy}." if (remedy := loss_monitor(monitor)) else ".")
    )


def loss_monitor(monitor: str) -> str:
    """Return the settings that make the loss of the same objective decide; empty if a loss decides already."""
    parts = monitor.split("/")
    if METRIC not in parts:
        return ""
    prefix = "".join(f"{part}/" for part in parts[: parts.index(METRIC)])
    return f"trainer.monitor={prefix}loss/total trainer.monitor_mode=min"


def late_advice(run: Run) -> str | None:
    """Return a line on a run that has hardly any steps left once evaluations count; None if enough are left."""
    since, left = run.best.since, run.total_steps - run.best.since
    if not since or left >= LEAST_LEFT * run.total_steps or run.total_steps < TRIAL_STEPS:
        return None
    epochs = run.total_steps / run.steps_per_epoch
    by_steps = run.config.get("trainer", {}).get("steps") is not None
    longer = f"steps={math.ceil(1.5 * run.total_steps)}" if by_steps else f"epochs={math.ceil(1.5 * epochs)}"
    return (
        f"what the hooks promise, such as final masks, holds from step {since} of {run.total_steps} on, so that {left} "
        f"steps are left to train with it, and only evaluations from there on can be the best. Let it be final by half "
        f"of the run, epoch {epochs / 2:g}, or train longer: trainer.{longer}."
    )
