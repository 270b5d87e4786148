"""What host hooks see of a run, what they may ask for, and when the loop pauses for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Split
from hookline.trainer.network import Network
from hookline.trainer.objective import Embedding, Objective
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
    """Choose the steps at which a run reports, evaluates and pauses for hooks.

    Attributes:
        total_steps: where the run ends.
        steps_per_epoch: may be a fraction.
        evaluate_every_epochs: epochs between evaluations.
        report_every_steps: steps between reports; None for once an epoch.
        first_step: at which the first epoch begins.
    """

    total_steps: int
    steps_per_epoch: float
    evaluate_every_epochs: int
    report_every_steps: int | None
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
        return {"monitor": self.monitor, "value": self.value, "step": self.step, "values": dict(self.values)}

    def put_back(self, stored: Mapping[str, Any] | None) -> None:
        """Take back what `as_json` returned."""
        stored = stored or {"value": None, "step": 0, "values": {}}
        self.value, self.step, self.values = stored["value"], stored["step"], dict(stored["values"])


def _no_pictures(step: int, split: str) -> dict[str, np.ndarray]:
    del step, split
    return {}


def _no_distributions(step: int) -> dict[str, np.ndarray]:
    del step
    return {}


def _no_embeddings(step: int, split: str) -> dict[str, Embedding]:
    del step, split
    return {}


@dataclass
class Run:
    """Describe the run to host hooks.

    Attributes:
        directory: the run directory; exists, holds config.yaml already.
        recipe: the recipe's name, such as "bnn" or "bnn+frozen_mask".
        config: the resolved config as plain dicts and lists.
        networks: the networks that are trained, by name.
        batch_size: examples per step.
        total_steps: steps that the run will make.
        steps_per_epoch: may be a fraction.
        plan: Markdown text: the stages with their hooks, the update ops, the variables.
        best: the best validation value so far.
        control: where hooks ask.
        step: steps made so far.
        train_seconds: wall time spent in training chunks, without the first step, evaluation and saving.
        timed_steps: steps made in that time.
        waited_seconds: how much of that time the steps waited for their batches.
        first_step_seconds: wall time of the first step, which pays for set-up and XLA's compilation.
        queue: batches that were ready when the latest chunk ended, and how many fit; None without a queue.
        vetoes: names of the vetoes that held back the latest step; normally empty.
        pictures: called as pictures(step, split); returns what hooks and objectives want to show now, by name.
        embeddings: called as embeddings(step, split); returns the vectors that they give, by name.
        distributions: called as distributions(step); returns arrays to make histograms of, by name.
        graph: called as graph(); returns the traced step as a graph to look at (`GraphDef`); None if nothing was
            traced, as in a test.
        training: the batches of the training split; None if a run has none, as in a test.
        first_pictures: called as first_pictures(); returns what can be shown before the first step, by name.
        from_checkpoint: whether the run goes on from a checkpoint: it was resumed, or has just rolled back.
        error: what ended the run before its time; None if nothing did.
        resumed_at: the steps at which the run was resumed.
        rolled_back: the steps from which it rolled back to a checkpoint.
        returns: for each of these, the step "to" which it rolled back, and the "rate_factor" of the checkpoint's rates.
        held_out: the splits that are not trained on, by name; empty if a run has none, as in a test.
        replicas: how many share a batch.
        warnings: what hooks have warned of so far, a line each.
    """

    directory: Path
    recipe: str
    config: dict[str, Any]
    networks: dict[str, Network]
    batch_size: int
    total_steps: int
    steps_per_epoch: float
    plan: str
    best: Best
    control: Control = field(default_factory=Control)
    step: int = 0
    train_seconds: float = 0.0
    timed_steps: int = 0
    waited_seconds: float = 0.0
    first_step_seconds: float = 0.0
    queue: tuple[int, int] | None = None
    vetoes: list[str] = field(default_factory=list)
    pictures: Callable[[int, str], dict[str, np.ndarray]] = _no_pictures
    embeddings: Callable[[int, str], dict[str, Embedding]] = _no_embeddings
    distributions: Callable[[int], dict[str, np.ndarray]] = _no_distributions
    graph: Callable[[], Any] | None = None
    training: TrainingBatches | None = None
    first_pictures: Callable[[], dict[str, np.ndarray]] = dict
    from_checkpoint: bool = False
    error: BaseException | None = None
    resumed_at: list[int] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)
    returns: list[dict[str, Any]] = field(default_factory=list)
    held_out: Mapping[str, Split] = field(default_factory=dict)
    replicas: int = 1
    warnings: list[str] = field(default_factory=list)

    @property
    def epoch(self) -> float:
        """Return epochs made so far, as a fraction."""
        return self.step / self.steps_per_epoch

    @property
    def images_per_second(self) -> float:
        """Return training examples per second of training time."""
        return self.timed_steps * self.batch_size / self.train_seconds if self.train_seconds else 0.0

    @property
    def waiting_share(self) -> float | None:
        """Return the share of training time that was spent waiting for batches; None while no time was taken."""
        return self.waited_seconds / self.train_seconds if self.train_seconds else None
