"""Early stopping: end the run when the monitored validation metric no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hookline.trainer.errors import check_integer, check_number
from hookline.trainer.hook import HostHook, Report, Run


class EarlyStopping(HostHook):
    """Stop the run after `patience` evaluations without an improvement.

    The metric and its direction are `trainer.monitor` and `trainer.monitor_mode`. A value is an improvement if it is
    finite and better than the best value so far by more than `min_delta`. Several evaluations at one step count once.
    Counting begins when the network has its final form, such as its final sparsity.

    Group: monitor

    State:
        best: the best value so far.
        best_step: the step of the best value.
        seen_step: the step of the last evaluation that counted.
        waited: evaluations since the best one.

    Cost: One comparison per evaluation.

    Pitfalls:
        tests/hooks/monitors/test_early_stopping.py: NaN is no improvement; a resumed run stops where an uninterrupted
            run would.

    Example:
        python train.py recipe=baseline hooks.early_stopping.patience=5 hooks.early_stopping.min_delta=1e-3
        python train.py recipe=baseline hooks.early_stopping=null
    """

    start: Mapping[str, Any] = {"best": None, "best_step": 0, "seen_step": -1, "waited": 0}

    def __init__(self, *, patience: int = 20, min_delta: float = 0.0) -> None:
        """Set when to stop.

        Args:
            patience: evaluations on the validation split without an improvement before the run ends; at least 1.
            min_delta: the gain that an improvement must exceed, in units of the metric; at least 0.
        """
        self._patience = check_integer("patience", patience, minimum=1)
        self._min_delta = check_number("min_delta", min_delta, minimum=0)
        self.load_state_dict({})

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state: dict[str, Any] = {**self.start, **state}

    def begin_anew(self) -> None:
        """Reset the best value and the counts, but keep their consequences, such as a reduced learning rate."""
        self._state |= EarlyStopping.start

    def summary(self) -> dict[str, Any]:
        return {"patience": self._patience, **{name: self._state[name] for name in self.start if name != "seen_step"}}

    def on_fit_begin(self, run: Run) -> None:
        if self._state["seen_step"] > run.step:  # the state is from another fit
            self.load_state_dict({})

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        if report.split != "validation" or report.step == self._state["seen_step"] or report.step < run.best.since:
            return
        self._state["seen_step"] = report.step
        value = report.values[run.best.monitor]
        if self._improves(value, run.best.mode):
            self._state.update(best=value, best_step=report.step, waited=0)
            return
        self._state["waited"] += 1
        if self._state["waited"] >= self._patience and run.step < run.total_steps:
            self.out_of_patience(run)

    def out_of_patience(self, run: Run) -> None:
        best, reason = self._state["best"], "was never finite"
        if best is not None:
            reason = f"did not improve on {best:.6g} of step {self._state['best_step']}"
        run.control.stop(f"early stopping: {run.best.monitor} {reason} in {self._state['waited']} evaluations")

    def _improves(self, value: float, mode: str) -> bool:
        best = self._state["best"]
        if not math.isfinite(value) or best is None:
            return math.isfinite(value)
        return bool((value - best if mode == "max" else best - value) > self._min_delta)
