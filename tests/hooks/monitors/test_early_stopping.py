import json
import math

import pytest

from hookline.hooks.monitors.early_stopping import EarlyStopping
from hookline.hooks.monitors.reduce_on_plateau import ReduceOnPlateau
from hookline.trainer.run.control import Best
from tests.support.refusals import assert_refused
from tests.support.runs import evaluate

NAN, INF = math.nan, math.inf


def first_stop(hook, run, values):
    """Return the index of the evaluation that stops the run, or None."""
    found = (index for index, value in enumerate(values) if evaluate(hook, run, index + 1, value) is not None)
    return next(found, None)


CASES = [
    ("max", {"patience": 3}, [0.5, 0.6, 0.6, 0.5, 0.6, 0.7], 4),
    ("min", {"patience": 2}, [1.0, 0.9, 0.8, 0.81, 0.8], 4),
    ("min", {"patience": 2, "min_delta": 0.01}, [0.5, 0.495, 0.491], 2),
    ("max", {"patience": 2, "min_delta": 0.01}, [0.5, 0.508, 0.516, 0.524, 0.532, 0.54], None),  # small gains add up
    ("max", {"patience": 2}, [0.5, INF, NAN], 2),
    ("min", {"patience": 2}, [NAN, NAN], 1),
]


def test_run_stops_after_patience_evaluations_without_improvement(make_run):
    for mode, options, values, stop in CASES:
        run = make_run(best=Best("metric/accuracy", mode))
        assert first_stop(EarlyStopping(**options), run, values) == stop
        assert (run.control.stop_reason is None) is (stop is None)


def test_other_splits_repeated_and_final_evaluations_do_not_count(make_run):
    hook, run = EarlyStopping(patience=1), make_run(total_steps=30)
    evaluate(hook, run, 10, 0.5)
    assert evaluate(hook, run, 10, 0.4) is None
    assert evaluate(hook, run, 20, 0.4, split="test") is None
    assert "0.5 of step 10" in evaluate(hook, run, 20, 0.4)
    hook, run = EarlyStopping(patience=1), make_run(total_steps=20)
    evaluate(hook, run, 10, 0.5)
    assert evaluate(hook, run, 20, 0.4) is None


def test_resumed_run_stops_where_an_uninterrupted_run_would(make_run):
    hook, run = EarlyStopping(patience=3), make_run()
    for step, value in enumerate([0.5, NAN, 0.6, 0.5, 0.5, 0.5], start=1):  # resumed after each
        resumed = EarlyStopping(patience=3)
        resumed.load_state_dict(json.loads(json.dumps(hook.state_dict(), allow_nan=False)))
        hook = resumed
        assert (evaluate(hook, run, step, value) is None) == (step < 6)
    assert hook.state_dict() == {"best": 0.6, "best_step": 3, "seen_step": 6, "waited": 3}
    assert hook.summary() == {"patience": 3, "waited": 3, "best": 0.6, "best_step": 3}


def test_new_fit_resets_the_state_and_resumed_fit_keeps_it(make_run):
    hook, run = EarlyStopping(patience=2), make_run()
    hook.on_fit_begin(run)
    assert first_stop(hook, run, [0.9, 0.8, 0.8]) == 2
    kept = hook.state_dict()
    hook.on_fit_begin(run)
    assert hook.state_dict() == kept
    hook.on_fit_begin(make_run())
    assert hook.state_dict() == EarlyStopping().state_dict()


def test_patience_starts_once_the_network_has_its_final_form(make_run):
    hook, run = EarlyStopping(patience=1), make_run()
    run.best.since = 30
    hook.on_fit_begin(run)
    assert [evaluate(hook, run, step, 0.9) for step in (10, 20)] == [None, None]
    assert hook.state_dict()["waited"] == 0
    assert [evaluate(hook, run, step, 0.5) is None for step in (30, 40)] == [True, False]


@pytest.mark.filterwarnings("ignore:metric/accuracy did not improve")
def test_rate_share_never_falls_below_least(make_run):
    """Runs with a falling rate are tested in tests/resume/test_every_hook_resumes.py."""
    hook, run = ReduceOnPlateau(factor=0.1, patience=1, least=0.005), make_run()
    run.lower_rates = lambda factor: None
    for _ in range(5):
        hook.out_of_patience(run)
    assert hook.summary()["share"] == pytest.approx(0.01)
    assert_refused("factor", ReduceOnPlateau, factor=0.0)
