"""Control of a run: pauses, reports, requests of host hooks, signals, the time budget; and its record."""

from __future__ import annotations

import itertools
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields
from types import FrameType
from typing import Any

from hookline.trainer.errors import UserError, did_you_mean
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.objective import Objective
from hookline.trainer.run.results import ACCURACY, AUTO, TOTAL_LOSS, mode_of
from hookline.trainer.step.stage import ask, takes_part

KINDS = ("", "loss/", "metric/")


def own_values(hook: Hook, values: Mapping[str, float], objectives: Sequence[Objective]) -> list[Mapping[str, float]]:
    """Return the values of a report once for each objective of a hook, with its own also under unprefixed names."""
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
"""The longest duration of a chunk, so that progress is shown and Ctrl-C takes effect."""


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
        """Return the step at which the next chunk ends: the nearest one due, at most half a second away."""
        asked = [ask(hook, "next_step", step, step=step) for hook in hooks]
        wanted = [each for each in asked if each is not None and each > step]
        longest = 1 if seconds_per_step is None else max(1, int(CHUNK_SECONDS / max(seconds_per_step, 1e-6)))
        return min([self.next_evaluation(step), self.next_report(step), step + longest, *wanted])

    def _next_epoch_end(self, step: int, every: int) -> int:
        end = self.first_step + due_after(step - self.first_step, every * self.steps_per_epoch)
        return min(self.total_steps, end)


def due_after(step: int, distance: float) -> int:
    """Return the smallest step after `step` that completes a multiple of `distance`, which may be a fraction."""
    first = math.floor(step / distance + 1e-9) + 1
    dues = (math.ceil(multiple * distance - 1e-9) for multiple in itertools.count(first))
    return next(due for due in dues if due > step)


@dataclass(frozen=True)
class Report:
    """Hold averaged metrics."""

    step: int  # optimizer steps made so far
    split: str  # "train", "validation" or "test"
    values: Mapping[str, float]  # by name, such as {"loss/total": 0.3, "metric/accuracy": 0.95}


@dataclass
class Control:
    """Collect the requests of host hooks, handled at the end of the chunk, and the vetoes to answer."""

    stop_reason: str | None = None  # why to stop, such as "early stopping: ..."; None to continue
    save_tags: set[str] = field(default_factory=set)  # of checkpoints to write, such as "last" or "best"
    vetoes: list[str] = field(default_factory=list)  # names of those that held back the latest step
    skip: bool = False  # whether to continue without the step that was held back
    rate_factor: float | None = None  # of the learning rates after a rollback; None for no rollback
    keep_last: int = 2  # how many checkpoints that were "last" to keep
    at_end: Callable[[], None] | None = None  # called before the last save, whichever hook requested the stop

    def stop(self, reason: str) -> None:
        """Request a stop of the run after this chunk."""
        self.stop_reason = self.stop_reason or reason

    def save(self, tag: str) -> None:
        """Request a checkpoint under `tag`, which replaces the earlier one; of "last", `keep_last` are kept."""
        self.save_tags.add(tag)

    def skip_step(self) -> None:
        """Request, in `on_veto`, that the run continue after the step that was held back."""
        self.skip = True

    def roll_back(self, rate_factor: float) -> None:
        """Request, in `on_veto`, a rollback to the newest checkpoint, to continue from there at a lower rate."""
        self.rate_factor = rate_factor


def choose_monitor(monitor: str, mode: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the validation metric that determines the best step ("auto": accuracy or total loss), and its mode."""
    if monitor == AUTO:
        losses = (name for name in names if name.endswith(TOTAL_LOSS))
        monitor = ACCURACY if ACCURACY in names else next(losses, TOTAL_LOSS)
    elif names and monitor not in names:
        meant = TOTAL_LOSS if monitor in ("loss", "val_loss") else monitor
        raise UserError(
            f"Unknown metric trainer.monitor={monitor}.{did_you_mean(meant, names)} "
            f"Expected one of: {', '.join(sorted(names))}; or trainer.monitor=auto trainer.monitor_mode=auto."
        )
    return monitor, mode_of(monitor, mode)


@dataclass
class Best:
    """Track the best value of the monitored metric."""

    monitor: str  # the metric's name on the validation split, such as "metric/accuracy"
    mode: str  # "max" or "min"
    value: float | None = None  # None before the first evaluation
    step: int = 0  # at which it was reached
    improved: bool = False  # whether the latest evaluation set it
    values: dict[str, float] = field(default_factory=dict)  # all metrics of that evaluation
    since: int = 0  # the step from which evaluations count: the largest `best_from_step` of the hooks

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
        """Return the entries for a checkpoint and for `summary.json`."""
        own = {"monitor": self.monitor, "mode": self.mode, "value": self.value}
        return {**own, "step": self.step, "values": dict(self.values)}

    def put_back(self, stored: Mapping[str, Any] | None) -> None:
        """Restore what `as_json` returned; None for no evaluation yet."""
        stored = stored or {"value": None, "step": 0, "values": {}}
        self.value, self.step, self.values = stored["value"], stored["step"], dict(stored["values"])


@dataclass
class Journal:
    """Record what happened in a run, for its checkpoints and its summary."""

    resumed_at: list[int] = field(default_factory=list)  # steps
    rolled_back: list[int] = field(default_factory=list)  # the steps from which it rolled back
    returns: list[dict[str, Any]] = field(default_factory=list)  # rollbacks and lowered rates: step "to", "rate_factor"
    started_from: list[str] = field(default_factory=list)  # lines about initial weights loaded from elsewhere
    warnings: list[str] = field(default_factory=list)  # lines
    warned: list[str] = field(default_factory=list)  # hooks whose `warning` has been shown
    final: dict[str, float] = field(default_factory=dict)  # values of the latest training report

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Journal:
        """Return the journal of a stored state, which also has other keys; older runs lack some of the journal's."""
        return cls(**{each.name: deepcopy(stored[each.name]) for each in fields(cls) if each.name in stored})


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Interruption:
    """Record why the run must end: a signal, or the wall-clock limit `max_seconds`."""

    max_seconds: float | None = None
    signal_number: int | None = None
    _since: float = field(default_factory=time.monotonic)

    @property
    def reason(self) -> str | None:
        """Return why the run must end, as text; None to continue."""
        if self.signal_number is not None:
            return signal.Signals(self.signal_number).name
        if self.max_seconds is not None and time.monotonic() - self._since >= self.max_seconds:
            return f"trainer.max_seconds={self.max_seconds:g}"
        return None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record the first signal; the next one stops the process at once. Only the main thread can handle signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # for nohup
        before = {number: signal.signal(number, self._note) for number in handled}
        try:
            with _ended_by_a_second():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)  # the operating system acts even while TensorFlow computes


@contextmanager
def _ended_by_a_second() -> Iterator[None]:
    """End the process at a second signal that arrives before Python has handled the first.

    Python's handlers wait until TensorFlow's computation ends, and merge several signals; `set_wakeup_fd` does not.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_end_at_a_second, args=[ours], name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
        thread.join()
        ours.close()


def _end_at_a_second(numbers: socket.socket) -> None:
    received = 0
    while number := numbers.recv(1):
        received += number[0] in SIGNALS
        if received == 2:
            os._exit(128 + number[0])
