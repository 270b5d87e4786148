from __future__ import annotations

import json
import math

import pytest

from hooks.monitors.early_stopping import EarlyStopping
from trainer.errors import UserError
from trainer.run.control import Best, Report


def evaluate(hook, run, step, value, split="validation"):
    run.step = step
    hook.on_evaluation_end(run, Report(step, split, {run.best.monitor: value, "loss/other": 0.0}))
    return run.control.stop_reason


def first_stop(hook, run, values):
    """Return the index of the evaluation that stops the run, or None."""
    for index, value in enumerate(values):
        if evaluate(hook, run, index + 1, value) is not None:
            return index
    return None


def test_the_run_stops_after_patience_evaluations_without_an_improvement(make_run):
    run = make_run()
    assert first_stop(EarlyStopping(patience=3), run, [0.5, 0.6, 0.6, 0.5, 0.6, 0.7]) == 4
    assert run.control.stop_reason == (
        "early stopping: metric/accuracy did not improve on 0.6 of step 2 in 3 evaluations"
    )


def test_an_improvement_starts_the_count_anew(make_run):
    assert first_stop(EarlyStopping(patience=2), make_run(), [0.5, 0.4, 0.6, 0.5, 0.7, 0.6, 0.6]) == 6


def test_a_loss_improves_downwards(make_run):
    run = make_run(best=Best("loss/total", "min"))
    assert first_stop(EarlyStopping(patience=2), run, [1.0, 0.9, 0.8, 0.81, 0.8]) == 4


@pytest.mark.parametrize(("mode", "values"), [("max", [0.5, 0.505, 0.509]), ("min", [0.5, 0.495, 0.491])])
def test_small_gains_do_not_count(make_run, mode, values):
    run = make_run(best=Best("metric/accuracy", mode))
    assert first_stop(EarlyStopping(patience=2, min_delta=0.01), run, values) == 2


def test_small_gains_that_add_up_count(make_run):
    run = make_run()
    assert first_stop(EarlyStopping(patience=2, min_delta=0.01), run, [0.5, 0.508, 0.516, 0.524, 0.532, 0.54]) is None


def test_values_that_are_not_finite_never_count_as_an_improvement(make_run):
    run = make_run()
    assert first_stop(EarlyStopping(patience=2), run, [0.5, math.inf, math.nan]) == 2
    run = make_run(best=Best("loss/total", "min"))
    assert first_stop(EarlyStopping(patience=2), run, [math.nan, math.nan]) == 1
    assert run.control.stop_reason == "early stopping: loss/total was never finite in 2 evaluations"


def test_a_finite_value_after_nan_is_an_improvement(make_run):
    assert first_stop(EarlyStopping(patience=2), make_run(), [math.nan, 0.1, 0.1]) is None


def test_other_splits_and_repeated_evaluations_of_a_step_do_not_count(make_run):
    hook, run = EarlyStopping(patience=1), make_run()
    evaluate(hook, run, 10, 0.5)
    assert evaluate(hook, run, 10, 0.4) is None
    assert evaluate(hook, run, 20, 0.4, split="test") is None
    assert evaluate(hook, run, 20, 0.4) is not None


def test_the_last_evaluation_of_a_run_does_not_call_it_stopped(make_run):
    hook, run = EarlyStopping(patience=1), make_run(total_steps=20)
    evaluate(hook, run, 10, 0.5)
    assert evaluate(hook, run, 20, 0.4) is None


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_resumed_run_stops_where_the_whole_run_would(make_run, cut):
    values = [0.5, math.nan, 0.6, 0.5, 0.5, 0.5, 0.5]
    first, run = EarlyStopping(patience=3), make_run()
    assert first_stop(first, run, values[:cut]) is None
    second = EarlyStopping(patience=3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for index in range(cut, len(values)):
        if evaluate(second, run, index + 1, values[index]):
            break
    assert index == 5
    assert second.state_dict() == {"best": 0.6, "best_step": 3, "seen_step": 6, "waited": 3}


def test_a_second_fit_begins_anew_and_a_resumed_one_does_not(make_run):
    hook, run = EarlyStopping(patience=2), make_run()
    hook.on_fit_begin(run)
    assert first_stop(hook, run, [0.9, 0.8, 0.8]) == 2
    kept = hook.state_dict()
    hook.on_fit_begin(run)
    assert hook.state_dict() == kept
    hook.on_fit_begin(make_run())
    assert hook.state_dict() == EarlyStopping().state_dict()
    assert first_stop(hook, make_run(), [0.1, 0.2, 0.3]) is None


def test_state_before_the_first_evaluation_is_json():
    state = json.loads(json.dumps(EarlyStopping().state_dict()))
    hook = EarlyStopping()
    hook.load_state_dict(state)
    assert hook.state_dict() == EarlyStopping().state_dict()


def test_the_summary_says_how_long_it_waited(make_run):
    hook, run = EarlyStopping(patience=5), make_run()
    first_stop(hook, run, [0.5, 0.4, 0.3])
    assert hook.summary() == {"patience": 5, "waited": 2, "best": 0.5, "best_step": 1}


@pytest.mark.parametrize("arguments", [{"patience": 0}, {"patience": None}, {"patience": 2.5}, {"min_delta": -0.1}])
def test_bad_arguments_are_named(arguments):
    with pytest.raises(UserError, match=f"^Invalid {next(iter(arguments))}: "):
        EarlyStopping(**arguments)


def test_it_waits_until_the_network_has_its_promised_form(make_run):
    hook, run = EarlyStopping(patience=1), make_run()
    run.best.since = 30
    hook.on_fit_begin(run)
    for step in (10, 20):
        hook.on_evaluation_end(run, Report(step, "validation", {run.best.monitor: 0.9}))
    assert hook.state_dict()["waited"] == 0
    assert run.control.stop_reason is None
    for step in (30, 40):
        hook.on_evaluation_end(run, Report(step, "validation", {run.best.monitor: 0.5}))
    assert run.control.stop_reason is not None
