from __future__ import annotations

import pytest

from hooks.monitors import progress_time
from hooks.monitors.progress_time import TimeLeft


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress_time.time, "monotonic", lambda: now[0])
    return now


def train(run, clock, left, steps: int, seconds: float) -> None:
    """Train, with a step a tenth of a second, and let other things take the rest of the time."""
    run.step += steps
    run.train_seconds += 0.1 * steps
    clock[0] += seconds
    left.take(evaluated=False)


def evaluate(clock, left, seconds: float) -> None:
    clock[0] += seconds
    left.take(evaluated=True)


def test_nothing_is_known_before_the_second_edge(make_run, clock):
    run = make_run()
    left = TimeLeft(run)
    assert left.seconds() is None
    train(run, clock, left, 1, 60.0)  # the first step compiles
    assert left.seconds() is None


def test_the_cost_of_an_evaluation_is_that_of_those_to_come(make_run, clock):
    run = make_run(total_steps=100)  # 10 an epoch
    left = TimeLeft(run)
    train(run, clock, left, 1, 60.0)
    train(run, clock, left, 9, 0.9)
    assert left.seconds() == pytest.approx(9.0)  # 90 steps; what an evaluation takes is not known
    evaluate(clock, left, 5.0)
    assert left.seconds() == pytest.approx(9.0 + 9 * 5.0)
    train(run, clock, left, 10, 1.0)
    assert left.seconds() == pytest.approx(8.0 + 8 * 5.0)


def test_evaluations_are_as_far_apart_as_the_config_says(make_run, clock):
    run = make_run(total_steps=100, config={"trainer": {"evaluate_every_epochs": 5}})
    left = TimeLeft(run)
    train(run, clock, left, 1, 60.0)
    train(run, clock, left, 49, 4.9)
    evaluate(clock, left, 5.0)
    assert left.seconds() == pytest.approx(5.0 + 5.0)


def test_a_resumed_run_counts_from_where_it_goes_on(make_run, clock):
    run = make_run(total_steps=100, step=50, train_seconds=1e6)
    left = TimeLeft(run)
    train(run, clock, left, 1, 60.0)
    train(run, clock, left, 9, 0.9)
    evaluate(clock, left, 2.0)
    assert left.seconds() == pytest.approx(4.0 + 4 * 2.0)


def test_at_the_end_nothing_is_left(make_run, clock):
    run = make_run(total_steps=20)
    left = TimeLeft(run)
    train(run, clock, left, 10, 1.0)
    train(run, clock, left, 10, 1.0)
    evaluate(clock, left, 3.0)
    assert left.seconds() == 0.0
