"""A trial of a search reports each evaluation to its study and stops when the pruner says so."""

import json
import math

import pytest

from hookline.hooks.monitors.study import PRUNED, TRIAL, open_storage
from hookline.hooks.monitors.trial_pruner import TrialPruner
from tests.support.refusals import assert_refused
from tests.support.runs import evaluate

optuna = pytest.importorskip("optuna")


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study with three trials that reached 0.9, and a running trial for this process."""
    place = str(tmp_path / "study.journal")
    made = optuna.create_study(study_name="s", storage=open_storage(place), direction="maximize")
    for _ in range(3):
        made.add_trial(optuna.trial.create_trial(value=0.9, intermediate_values={10: 0.5, 20: 0.8, 30: 0.9}))
    made.ask()
    monkeypatch.setenv(TRIAL, json.dumps({"storage": place, "study": "s", "number": 3}))
    return made


def begun(make_run, **options):
    hook, run = TrialPruner(options={"n_startup_trials": 1, **options}), make_run(total_steps=30)
    hook.name = "trial_pruner"
    hook.on_fit_begin(run)
    return hook, run


def test_trial_is_stopped_only_behind_the_median(make_run, study):
    hook, run = begun(make_run)
    assert evaluate(hook, run, 10, 0.1, split="test") is None
    assert evaluate(hook, run, 10, 0.6) is None
    again, resumed = begun(make_run)  # the process was killed after its report
    assert evaluate(again, resumed, 10, 0.6) is None
    assert evaluate(again, resumed, 20, 0.7).startswith(f"{PRUNED}metric/accuracy is 0.7 at step 20")
    assert study.trials[3].intermediate_values == {10: 0.6, 20: 0.7}
    assert again.summary() == {"reported": 2}


def test_pruner_waits_for_the_final_form_and_spares_the_last_evaluation(make_run, study):
    hook, run = begun(make_run)
    run.best.since = 20
    assert evaluate(hook, run, 10, 0.1) is None
    assert evaluate(hook, run, 30, 0.1) is None  # the run is complete
    assert study.trials[3].intermediate_values == {30: 0.1}
    hook, run = begun(make_run, n_warmup_steps=25)  # resumed from before step 30
    assert evaluate(hook, run, 20, math.nan) is None
    assert study.trials[3].intermediate_values.keys() == {20, 30}


def test_training_continues_without_a_search_or_a_running_trial(make_run, study, monkeypatch):
    hook, run = begun(make_run)
    study.tell(3, state=optuna.trial.TrialState.FAIL)  # by hand
    with pytest.warns(UserWarning, match="stops pruning trials: Trial#3 has already finished"):
        assert evaluate(hook, run, 10, 0.1) is None
    assert evaluate(hook, run, 20, 0.1) is None
    monkeypatch.delenv(TRIAL)
    hook, run = begun(make_run)
    assert evaluate(hook, run, 20, 0.1) is None
    assert hook.summary() == {"reported": 0}


def test_invalid_options_are_named_in_the_error(make_run, study):
    assert_refused("median", TrialPruner, pruner="mean")
    assert_refused("hooks.trial_pruner.options do not fit median: .*startup", begun, make_run, startup=3)
