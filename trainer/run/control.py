"""What host hooks are told and may ask for, when the loop pauses for them, and what stays known of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hookline.trainer.errors import UserError, did_you_mean
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.objective import Objective
from hookline.trainer.run.results import ACCURACY, AUTO, mode_of
from hookline.trainer.step.returned import ask
from hookline.trainer.step.stage import takes_part

KINDS = ("", "loss/", "metric/")


def own_values(hook: Hook, values: Mapping[str, float], objectives: Sequence[Objective]) -> list[Mapping[str, float]]:
    """Return the values of a report as a hook knows them, once for each objective that it takes part in.

    The prefix of its names, of an objective among several or of a network, is left out; the other values keep their
    full names.
    """
    if not isinstance(hook, GraphHook):
        return [values]
    views: list[Mapping[str, float]] = []
    for objective in objectives:
        if takes_part(hook, objective.name, objective.trains):
            prefix = f"{objective.name}/" if len(objectives) > 1 else ""
            own = {
                kind + name.removeprefix(prefix + kind + hook.scope): value
                for kind in KINDS
                for name, value in values.items()
                if name.startswith(prefix + kind + hook.scope)
            }
            views.append({**values, **own})
    return views


CHUNK_SECONDS = 0.5
"""How long a chunk should last at most, so that progress shows and Ctrl-C is heard."""


@dataclass
class Cadence:
    """Choose the steps at which a run reports, evaluates and pauses for hooks."""

    total_steps: int
    steps_per_epoch: float
    evaluate_every_epochs: int
    report_every_steps: int | None  # None for once an epoch
    first_step: int = 0

    def next_evaluation(self, step: int) -> int:
        """Return the first evaluation after `step`: the end of an epoch that is due, or the end of the run."""
        return self._next_epoch_end(step, self.evaluate_every_epochs)

    def next_report(self, step: int) -> int:
        """Return the first report after `step`."""
        if self.report_every_steps is None:
            return self._next_epoch_end(step, 1)
        return min(self.total_steps, (step // self.report_every_steps + 1) * self.report_every_steps)

    def next_edge(self, step: int, hooks: Iterable[HostHook], seconds_per_step: float | None) -> int:
        """Return the step at which the next chunk ends: the nearest one asked for, or what fits into half a second."""
        wishes = [wish for hook in hooks if (wish := _wish(hook, step)) is not None and wish > step]
        longest = 1 if seconds_per_step is None else max(1, int(CHUNK_SECONDS / max(seconds_per_step, 1e-6)))
        return min([self.next_evaluation(step), self.next_report(step), step + longest, *wishes])

    def _next_epoch_end(self, step: int, every: int) -> int:
        step -= self.first_step
        count = math.floor(step / (every * self.steps_per_epoch)) + 1
        end = math.ceil(count * every * self.steps_per_epoch)
        if end <= step:  # rounding put the end of this epoch at or before the step
            end = math.ceil((count + 1) * every * self.steps_per_epoch)
        return min(self.total_steps, self.first_step + end)


def _wish(hook: HostHook, step: int) -> int | None:
    wish: int | None = ask(hook, "next_step", step, step=step)
    return wish


@dataclass(frozen=True)
class Report:
    """Hold averaged metrics.

    Attributes:
        step: optimizer steps made so far.
        split: "train", "validation" or "test".
        values: name to float, such as {"loss/total": 0.3, "metric/accuracy": 0.95, "opt/learning_rate": 1e-3}.
    """

    step: int
    split: str
    values: Mapping[str, float]


@dataclass
class Control:
    """Collect what host hooks ask of the loop; the loop acts at the edge of the chunk.

    Attributes:
        stop_reason: why to stop, such as "early stopping: ..."; None to continue.
        save_tags: tags of checkpoints to write, such as "last" or "best".
        skip: whether to continue without the step that was held back.
        rate_factor: what to multiply the learning rates by after rolling back to the newest checkpoint; None to stay.
        keep_last: how many checkpoints that were "last" stay, 1 or more.
    """

    stop_reason: str | None = None
    save_tags: set[str] = field(default_factory=set)
    skip: bool = False
    rate_factor: float | None = None
    keep_last: int = 2

    def stop(self, reason: str) -> None:
        """Ask for the run to end cleanly after this chunk."""
        self.stop_reason = self.stop_reason or reason

    def save(self, tag: str) -> None:
        """Ask for a checkpoint under `tag`; it replaces the tag's earlier one, of "last" the oldest that was kept."""
        self.save_tags.add(tag)

    def skip_step(self) -> None:
        """Ask, in `on_veto`, to continue after the step that was held back. Nothing of it is written."""
        self.skip = True

    def roll_back(self, rate_factor: float) -> None:
        """Ask, in `on_veto`, to roll back to the newest checkpoint and continue from there at a lower rate."""
        self.rate_factor = rate_factor


def choose_monitor(monitor: str, mode: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the metric of the validation split that decides what is best, and whether "max" or "min" of it is.

    Of "auto" it is the accuracy where there is one, else the total loss. Without a validation split there are no names.
    """
    if monitor == AUTO:
        losses = (name for name in names if name.endswith("loss/total"))
        monitor = ACCURACY if ACCURACY in names else next(losses, "loss/total")
    elif names and monitor not in names:
        raise UserError(
            f"Unknown metric trainer.monitor={monitor}.{did_you_mean(monitor, names)} "
            f"Expected one of: {', '.join(sorted(names))}; or trainer.monitor=auto trainer.monitor_mode=auto."
        )
    return monitor, mode_of(monitor, mode)


@dataclass
class Best:
    """Track the best value of the monitored metric.

    Attributes:
        monitor: the metric's name on the validation split, such as "metric/accuracy".
        mode: "max" or "min".
        value: the best value so far; None before the first evaluation.
        step: the step at which it was reached.
        improved: whether the latest evaluation set it.
        values: all metrics of that evaluation.
        since: the step from which evaluations count: the largest `best_from_step` that hooks declare.
    """

    monitor: str
    mode: str
    value: float | None = None
    step: int = 0
    improved: bool = False
    values: dict[str, float] = field(default_factory=dict)
    since: int = 0

    def update(self, report: Report) -> None:
        """Compare a validation report with the best so far; NaN is never the best, nor is a step before `since`."""
        self.improved = False
        if report.step < self.since:
            return
        value = report.values[self.monitor]
        worst = -math.inf if self.mode == "max" else math.inf
        best = worst if self.value is None else self.value
        self.improved = value > best if self.mode == "max" else value < best
        if self.improved:
            self.value, self.step, self.values = value, report.step, dict(report.values)

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint and `summary.json` hold of it."""
        return {
            "monitor": self.monitor,
            "mode": self.mode,
            "value": self.value,
            "step": self.step,
            "values": dict(self.values),
        }

    def put_back(self, stored: Mapping[str, Any] | None) -> None:
        """Take back what `as_json` returned."""
        stored = stored or {"value": None, "step": 0, "values": {}}
        self.value, self.step, self.values = stored["value"], stored["step"], dict(stored["values"])


@dataclass
class Journal:
    """Keep what has happened to a run; its checkpoints hold it.

    Attributes:
        resumed_at: the steps at which the run was resumed.
        rolled_back: the steps from which it rolled back to a checkpoint.
        returns: for each of these, the step "to" which it rolled back, and the "rate_factor" of the checkpoint's rates.
        started_from: lines on the weights that the networks started from; none if they are their own.
        warnings: what hooks have warned of so far, a line each.
        warned: names of the hooks whose `warning` has been shown.
        final: values of the latest training report.
    """

    resumed_at: list[int] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)
    returns: list[dict[str, Any]] = field(default_factory=list)
    started_from: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    final: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Journal:
        """Return what `as_json` has stored, perhaps among other things; older runs have no warnings."""
        return cls(**{each.name: deepcopy(stored[each.name]) for each in fields(cls) if each.name in stored})
