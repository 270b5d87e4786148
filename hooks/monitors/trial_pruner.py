"""Trial pruner: end a hopeless trial of a search early."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from copy import copy
from typing import Any

from hookline.hooks.monitors.study import PRUNED, TRIAL, open_storage
from hookline.trainer.errors import UserError, check_choice, one_line
from hookline.trainer.hook import HostHook, Report, Run

PRUNERS = {
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
}


class TrialPruner(HostHook):
    """Report validation results of a trial to its Optuna study, and stop the run if Optuna's pruner prunes the trial.

    The metric is `trainer.monitor`. The run ends normally, with the status "stopped", and the study records the trial
    as pruned. Evaluations count only once the network has its final form, such as its final sparsity. Outside of a
    search (`--trials`), the hook does nothing. If the study cannot be reached at an evaluation, training continues
    without pruning, and one warning gives the reason. `pip install -e '.[search]'` installs the dependencies.

    Group: monitor

    Cost: One write to the study, and one read, per evaluation.

    Pitfalls:
        tests/hooks/monitors/test_trial_pruner.py: a resumed run is judged by its evaluations so far, not by later ones
            that it made before it was killed.

    Reference: Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019.

    Example:
        python train.py -m recipe=bnn +hooks=trial_pruner --trials 40 'optimizer.learning_rate=interval(1e-4,1e-2)'
    """

    def __init__(self, *, pruner: str = "median", options: Mapping[str, Any] | None = None) -> None:
        """Store the settings; the study is opened when training begins.

        Args:
            pruner: one of Optuna's pruners: median, percentile, successive_halving, hyperband or threshold.
            options: arguments of the pruner, such as {n_startup_trials: 5, n_warmup_steps: 300}; steps are optimizer
                steps. None for Optuna's defaults.
        """
        self._pruner = check_choice("pruner", pruner, list(PRUNERS))
        self._options = dict(options or {})
        self._study: Any = None
        self._storage: Any = None
        self._trial = -1
        self._reported = 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def summary(self) -> dict[str, Any]:
        return {"reported": self._reported}

    def on_fit_begin(self, run: Run) -> None:
        if (named := os.environ.get(TRIAL)) is None or self._study is not None:
            return
        import optuna

        try:
            pruner = getattr(optuna.pruners, PRUNERS[self._pruner])(**self._options)
        except (TypeError, ValueError) as error:
            raise UserError(f"hooks.{self.name}.options do not fit {self._pruner}: {one_line(str(error))}.") from error
        trial = json.loads(named)
        self._storage = open_storage(trial["storage"])
        self._study = optuna.load_study(study_name=trial["study"], storage=self._storage, pruner=pruner)
        study = self._storage.get_study_id_from_name(trial["study"])
        self._trial = self._storage.get_trial_id_from_study_id_trial_number(study, trial["number"])

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        if self._study is None or report.split != "validation" or report.step < run.best.since:
            return
        value = report.values[run.best.monitor]
        try:
            self._storage.set_trial_intermediate_value(self._trial, report.step, value)
            trial = copy(self._storage.get_trial(self._trial))
            known = trial.intermediate_values.items()  # also of later steps, if the run was resumed before them
            trial.intermediate_values = {step: each for step, each in known if step <= report.step}
            prunes = self._study.pruner.prune(self._study, trial)
        except Exception as error:  # noqa: BLE001 - whatever a storage raises, the run continues
            warnings.warn(f"The hook '{self.name}' stops pruning trials: {one_line(str(error))[:200]}.", stacklevel=2)
            self._study = None
            return
        self._reported += 1
        if prunes and run.step < run.total_steps:
            run.control.stop(f"{PRUNED}{run.best.monitor} is {value:.6g} at step {report.step}, behind other trials")
