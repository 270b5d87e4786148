"""Reduce on plateau: lower the learning rate when the monitored validation metric no longer improves."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hookline.hooks.monitors.early_stopping import EarlyStopping
from hookline.trainer.errors import check_number
from hookline.trainer.hook import Run


class ReduceOnPlateau(EarlyStopping):
    """Multiply the learning rates by `factor` after `patience` evaluations without an improvement, then count again.

    Evaluations and improvements count as in `early_stopping`, whose patience should be longer. The schedule continues,
    multiplied by all factors so far; with `schedule=constant` this hook alone sets the rate.

    Group: monitor

    State:
        best: the best value so far.
        best_step: the step of the best value.
        seen_step: the step of the last evaluation that counted.
        waited: evaluations since the best one, or since the rate was lowered.
        share: current share of the full rate.

    Cost: One comparison per evaluation.

    Pitfalls:
        tests/resume/test_every_hook_resumes.py: a resumed run keeps the lower rate, and lowers it again where an
            uninterrupted run would.

    Example:
        python train.py recipe=baseline schedule=constant +hooks=reduce_on_plateau
    """

    start: Mapping[str, Any] = {**EarlyStopping.start, "share": 1.0}

    def __init__(self, *, factor: float = 0.1, patience: int = 5, min_delta: float = 0.0, least: float = 0.001) -> None:
        """Set how the rate is lowered.

        Args:
            factor: factor by which the rate is multiplied each time; in (0, 1].
            patience: evaluations on the validation split without an improvement before the rate is lowered; at least 1.
            min_delta: the gain that an improvement must exceed, in units of the metric; at least 0.
            least: share of the full rate below which it is not lowered; in (0, 1].
        """
        self._factor = check_number("factor", factor, minimum=0, maximum=1, above_minimum=True)
        self._least = check_number("least", least, minimum=0, maximum=1, above_minimum=True)
        super().__init__(patience=patience, min_delta=min_delta)

    def out_of_patience(self, run: Run) -> None:
        self._state["waited"] = 0
        if self._state["share"] * self._factor < self._least:
            return
        self._state["share"] *= self._factor
        run.lower_rates(self._factor)
        warnings.warn(
            f"{run.best.monitor} did not improve in {self._patience} evaluations: the learning rate is now "
            f"{self._state['share']:.3g} of its schedule.",
            stacklevel=2,
        )
