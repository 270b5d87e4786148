"""What hooks ask for, and the best value so far."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.run.control import Best, Control, Report, Run


def report(step: int, value: float) -> Report:
    return Report(step, "validation", {"metric/accuracy": value, "loss/total": 1.0 - value})


def test_first_reason_to_stop_stands() -> None:
    control = Control()
    control.stop("first")
    control.stop("second")
    assert control.stop_reason == "first"


@pytest.mark.parametrize(("mode", "best"), [("max", 0.9), ("min", 0.2)])
def test_best_follows_the_mode_and_ties_do_not_improve(mode: str, best: float) -> None:
    tracker = Best("metric/accuracy", mode)
    improved = []
    for step, value in enumerate([0.5, 0.9, 0.9, 0.2, 0.2]):
        tracker.update(report(step, value))
        improved.append(tracker.improved)
    assert tracker.value == best
    assert improved == ([True, True, False, False, False] if mode == "max" else [True, False, False, True, False])
    assert tracker.step == (1 if mode == "max" else 3)
    assert tracker.values["loss/total"] == pytest.approx(1.0 - best)


def test_nan_is_never_the_best() -> None:
    tracker = Best("metric/accuracy", "max")
    tracker.update(report(0, float("nan")))
    assert tracker.value is None
    tracker.update(report(1, 0.3))
    assert tracker.value == 0.3
    tracker.update(report(2, float("nan")))
    assert tracker.value == 0.3


def test_epoch_and_rate_follow_from_steps() -> None:
    run = Run(Path(), "bnn", {}, {}, 10, 100, 12.5, "", Best("metric/accuracy", "max"))
    assert run.images_per_second == 0.0
    assert run.waiting_share is None
    run.step, run.timed_steps, run.train_seconds, run.waited_seconds = 25, 25, 5.0, 1.0
    assert run.waiting_share == 0.2
    assert run.epoch == 2.0
    assert run.images_per_second == 50.0


def test_evaluations_before_the_network_has_its_promised_form_are_never_the_best() -> None:
    tracker = Best("metric/accuracy", "max", since=10)
    tracker.update(report(5, 0.99))
    assert (tracker.value, tracker.improved) == (None, False)
    tracker.update(report(10, 0.5))
    assert (tracker.value, tracker.improved) == (0.5, True)
