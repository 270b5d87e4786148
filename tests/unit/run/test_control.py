"""What hooks ask for, and the best value so far."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookline.trainer.run.control import Best, Control, Report, Run


def seen(tracker: Best, *values: float, first: int = 0) -> list[bool]:
    improved = []
    for step, value in enumerate(values, start=first):
        tracker.update(Report(step, "validation", {"metric/accuracy": value, "loss/total": 1.0 - value}))
        improved.append(tracker.improved)
    return improved


@pytest.mark.parametrize(("mode", "best", "step"), [("max", 0.9, 1), ("min", 0.2, 3)])
def test_best_follows_the_mode_and_ties_do_not_improve(mode: str, best: float, step: int) -> None:
    tracker = Best("metric/accuracy", mode)
    found = [index for index, each in enumerate(seen(tracker, 0.5, 0.9, 0.9, 0.2, 0.2)) if each]
    assert (found, tracker.value, tracker.step) == ([0, step], best, step)
    assert tracker.values["loss/total"] == pytest.approx(1.0 - best)


def test_neither_nan_nor_what_comes_before_the_promised_form_is_the_best() -> None:
    tracker, nan = Best("metric/accuracy", "max"), float("nan")
    assert seen(tracker, nan, 0.3, nan) == [False, True, False]
    assert tracker.value == 0.3
    late = Best("metric/accuracy", "max", since=10)
    assert seen(late, 0.99, 0.5, first=9) == [False, True]
    assert late.value == 0.5


def test_epoch_and_rate_follow_from_steps_and_the_first_reason_stands() -> None:
    run = Run(Path(), "bnn", {}, {}, 10, 100, 12.5, "", Best("metric/accuracy", "max"))
    assert (run.images_per_second, run.waiting_share) == (0.0, None)
    run.step, run.timed_steps, run.train_seconds, run.waited_seconds = 25, 25, 5.0, 1.0
    assert (run.waiting_share, run.epoch, run.images_per_second) == (0.2, 2.0, 50.0)
    control = Control()
    control.stop("first")
    control.stop("second")
    assert control.stop_reason == "first"
