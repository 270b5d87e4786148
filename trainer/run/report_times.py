"""Where the wall time of training goes from one report to the next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from trainer.hook import HostHook
from trainer.run.control import Run

STEP, WAITING = "time/step_ms", "time/waiting_share"
EVALUATION, SAVE, HOOKS = "time/evaluation_ms", "time/save_ms", "time/hooks_ms/"
WATCHING = ("on_chunk_end", "on_evaluation_end", "before_save")
"""The stages of host hooks between two reports."""
MILLISECONDS = 1000.0


def time_names(hooks: Iterable[HostHook]) -> list[str]:
    """Return the names of the times that training reports.

    Args:
        hooks: that watch, in order.
    """
    return [WAITING, STEP, EVALUATION, SAVE, *(HOOKS + name for name in _watching(hooks))]


def _watching(hooks: Iterable[HostHook]) -> list[str]:
    """Return the names of the hooks that have something to do between two reports."""
    return [
        hook.name
        for hook in hooks
        if any(getattr(type(hook), stage) is not getattr(HostHook, stage) for stage in WATCHING)
    ]


@dataclass
class ReportTimes:
    """Tell for each report where the time since the one before it went.

    "time/step_ms" is for a step, in the chunks alone, "time/waiting_share" how much of that the steps waited for their
    batches; both are without the first step, which sets everything up, so a report on it alone has neither. The others
    are sums: "time/hooks_ms/<hook>" for each host hook that watches, "time/evaluation_ms" for the evaluations of the
    validation split, and "time/save_ms" for what checkpoints held up the loop, both without what hooks did there, and
    only where there were any. A report comes before the hooks, the evaluation and the checkpoint of its own step: they
    count in the next one.

    Attributes:
        evaluating: seconds of all evaluations so far.
        saving: seconds of all saves so far.
    """

    evaluating: float = 0.0
    saving: float = 0.0
    _before: dict[str, float] = field(default_factory=dict)

    def begin(self, run: Run, seconds: Mapping[str, float]) -> None:
        """Count from now on.

        Args:
            run: at its begin; what it spent in earlier processes was reported there.
            seconds: spent in each host hook so far, by name.
        """
        self._before = self._so_far(run, seconds)

    def since_last(self, run: Run, seconds: Mapping[str, float], hooks: Iterable[HostHook]) -> dict[str, float]:
        """Return the values of a report, by name, and count from now on for the next.

        Args:
            run: at the edge of a chunk.
            seconds: spent in each host hook so far, by name.
            hooks: that watch, in order.
        """
        now, before = self._so_far(run, seconds), self._before
        self._before = now
        spent = {name: total - before.get(name, 0.0) for name, total in now.items()}
        values = {}
        if spent["training"]:
            values[WAITING] = spent["waited"] / spent["training"]
        if spent["steps"]:
            values[STEP] = MILLISECONDS * spent["training"] / spent["steps"]
        values |= {name: MILLISECONDS * spent[name] for name in (EVALUATION, SAVE) if spent[name]}
        return values | {HOOKS + name: MILLISECONDS * spent.get(HOOKS + name, 0.0) for name in _watching(hooks)}

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Return a context whose time is that of an evaluation."""
        start = time.perf_counter()
        yield
        self.evaluating += time.perf_counter() - start

    @contextmanager
    def save(self) -> Iterator[None]:
        """Return a context whose time is that of a save."""
        start = time.perf_counter()
        yield
        self.saving += time.perf_counter() - start

    def _so_far(self, run: Run, seconds: Mapping[str, float]) -> dict[str, float]:
        totals = {"waited": run.waited_seconds, "training": run.train_seconds, "steps": float(run.timed_steps)}
        totals |= {EVALUATION: self.evaluating, SAVE: self.saving}
        return totals | {HOOKS + name: spent for name, spent in seconds.items()}
