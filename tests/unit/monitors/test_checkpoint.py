from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.monitors import checkpoint
from hooks.monitors.checkpoint import Checkpoint, due_after
from hooks.monitors.early_stopping import EarlyStopping
from trainer.errors import UserError
from trainer.order import order_hooks
from trainer.run.control import Report


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    return now


def chunk(hook, run, step):
    """Tell the hook of a chunk that ends at `step`; return the tags it asks for."""
    run.step = step
    hook.on_chunk_end(run, None)
    return take(run)


def evaluate(hook, run, accuracy):
    report = Report(run.step, "validation", {"metric/accuracy": accuracy})
    run.best.update(report)
    hook.on_evaluation_end(run, report)
    return take(run)


def take(run):
    tags, run.control.save_tags = run.control.save_tags, set()
    return tags


def test_last_is_due_at_epoch_ends_once_enough_time_has_passed(make_run, clock):
    hook, run = Checkpoint(every_seconds=60), make_run()
    hook.on_fit_begin(run)
    clock[0] = 59.0
    assert chunk(hook, run, 10) == set()
    clock[0] = 61.0
    assert chunk(hook, run, 15) == set()  # inside an epoch
    assert chunk(hook, run, 20) == {"last"}
    clock[0] = 120.0
    assert chunk(hook, run, 30) == set()  # 59 s after the one before
    clock[0] = 121.0
    assert chunk(hook, run, 40) == {"last"}


def test_without_a_time_last_is_due_at_every_multiple(make_run):
    hook, run = Checkpoint(every_epochs=2, every_seconds=0), make_run()
    hook.on_fit_begin(run)
    saved = [step for step in range(1, 100) if chunk(hook, run, step)]
    assert saved == [20, 40, 60, 80]


def test_fractions_of_an_epoch_save_inside_it(make_run):
    hook, run = Checkpoint(every_epochs=0.25, every_seconds=0), make_run(steps_per_epoch=10.0, total_steps=1000)
    hook.on_fit_begin(run)
    assert [step for step in range(1, 31) if chunk(hook, run, step)] == [3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28, 30]


def test_chunks_end_where_a_save_may_be_due(make_run):
    hook, run = Checkpoint(every_epochs=1), make_run(steps_per_epoch=10.5)
    assert hook.next_step(0) is None  # the run is not known yet
    hook.on_fit_begin(run)
    assert [hook.next_step(step) for step in (0, 10, 11, 20, 21)] == [11, 11, 21, 21, 32]


def test_last_is_due_at_the_end_whatever_the_time(make_run, clock):
    hook, run = Checkpoint(), make_run(total_steps=95)
    hook.on_fit_begin(run)
    assert chunk(hook, run, 90) == set()
    assert chunk(hook, run, 95) == {"last"}


def test_nothing_is_asked_for_twice_at_one_step(make_run):
    hook, run = Checkpoint(every_seconds=0), make_run()
    hook.on_fit_begin(run)
    assert chunk(hook, run, 100) == {"last"}
    assert chunk(hook, run, 100) == set()
    assert evaluate(hook, run, 0.5) == {"best"}
    assert evaluate(hook, run, 0.6) == set()


def test_best_is_due_when_an_evaluation_improves(make_run, clock):
    hook, run = Checkpoint(), make_run()
    hook.on_fit_begin(run)
    asked = []
    for step, accuracy in ((10, 0.5), (20, 0.4), (30, 0.5), (40, 0.6)):
        chunk(hook, run, step)
        asked.append(evaluate(hook, run, accuracy))
    assert asked == [{"best"}, set(), set(), {"best"}]


def test_best_can_be_left_out(make_run, clock):
    hook, run = Checkpoint(keep_best=False), make_run()
    hook.on_fit_begin(run)
    chunk(hook, run, 10)
    assert evaluate(hook, run, 0.5) == set()


def test_the_run_is_told_how_many_stay(make_run):
    run = make_run()
    Checkpoint().on_fit_begin(run)
    assert run.control.keep_last == 2
    Checkpoint(keep_last=5).on_fit_begin(run)
    assert run.control.keep_last == 5


def test_the_test_split_saves_nothing(make_run):
    hook, run = Checkpoint(), make_run()
    hook.on_fit_begin(run)
    run.best.improved = True
    hook.on_evaluation_end(run, Report(100, "test", {"metric/accuracy": 0.5}))
    assert take(run) == set()


def test_a_stop_that_another_hook_has_just_asked_for_saves_last(make_run, clock):
    stopping, saving = EarlyStopping(patience=1), Checkpoint()
    stopping.name, saving.name = "z_stopping", "a_saving"
    saving.after = ("z_stopping",)
    run = make_run()
    hooks = order_hooks([saving, stopping])
    assert hooks == [stopping, saving]
    for hook in hooks:
        hook.on_fit_begin(run)
    asked = []
    for step in (10, 20):
        run.step = step
        report = Report(step, "validation", {"metric/accuracy": 0.5})
        run.best.update(report)
        for hook in hooks:
            hook.on_chunk_end(run, None)
        for hook in hooks:
            hook.on_evaluation_end(run, report)
        asked.append(take(run))
    assert asked == [{"best"}, {"last"}]


def test_checkpoint_comes_after_early_stopping_by_declaration():
    assert "early_stopping" in Checkpoint.after


def test_a_resumed_run_does_not_save_the_same_step_again(make_run):
    hook, run = Checkpoint(every_seconds=0), make_run()
    hook.on_fit_begin(run)
    assert chunk(hook, run, 10) == {"last"}
    resumed = Checkpoint(every_seconds=0)
    resumed.load_state_dict(json.loads(json.dumps(hook.state_dict())))
    resumed.on_fit_begin(run)
    assert chunk(resumed, run, 10) == set()
    assert chunk(resumed, run, 20) == {"last"}


def test_a_second_fit_saves_like_the_first(make_run):
    hook = Checkpoint()
    for _ in range(2):
        run = make_run()
        hook.on_fit_begin(run)
        assert chunk(hook, run, 100) == {"last"}


def test_the_summary_says_where_the_checkpoints_are_from(make_run):
    hook, run = Checkpoint(), make_run()
    hook.on_fit_begin(run)
    chunk(hook, run, 100)
    assert hook.summary() == {"steps": {"last": 100}}


@given(distance=st.floats(0.05, 1e4), count=st.integers(1, 300))
def test_due_steps_rise_and_stay_within_a_step_of_the_multiples(distance, count):
    step, seen = 0, []
    for _ in range(count):
        following = due_after(step, distance)
        assert following > step
        assert due_after(following - 1, distance) == following  # from anywhere before it
        multiple = round(following / distance)
        nearest = min(abs(following - (multiple + shift) * distance) for shift in (-1, 0, 1))
        assert nearest <= 1.0 + 1e-6
        seen.append(following)
        step = following
    if distance >= 1:
        assert seen[-1] <= count * distance + 1


@pytest.mark.parametrize("arguments", [{"every_epochs": 0}, {"every_seconds": -1}, {"keep_best": 1}, {"keep_last": 0}])
def test_bad_arguments_are_named(arguments):
    with pytest.raises(UserError, match=f"^Invalid {next(iter(arguments))}: "):
        Checkpoint(**arguments)
