from __future__ import annotations

import pytest

from hookline.hooks.monitors import progress as progress_time
from hookline.hooks.monitors.progress import TimeLeft


class Story:
    """Train, with a step a tenth of a second, evaluate, and let other things take the rest of the time."""

    def __init__(self, run, patch) -> None:
        self.now, self.run = 1000.0, run
        patch.setattr(progress_time.time, "monotonic", lambda: self.now)
        self.left = TimeLeft(run)

    def train(self, steps: int, seconds: float):
        self.run.step += steps
        self.run.train_seconds += 0.1 * steps
        self.now += seconds
        self.left.take(evaluated=False)
        return self.left.seconds()

    def evaluate(self, seconds: float):
        self.now += seconds
        self.left.take(evaluated=True)
        return self.left.seconds()


def test_steps_and_evaluations_to_come_cost_what_those_before_did(make_run, monkeypatch):
    story = Story(make_run(total_steps=100), monkeypatch)  # 10 an epoch
    assert story.left.seconds() is story.train(1, 60.0) is None  # the first step compiles
    assert story.train(9, 0.9) == pytest.approx(9.0)  # 90 steps; what an evaluation takes is not known
    assert story.evaluate(5.0) == pytest.approx(9.0 + 9 * 5.0)
    assert story.train(10, 1.0) == pytest.approx(8.0 + 8 * 5.0)
    story.train(80, 8.0)
    assert story.evaluate(5.0) == 0.0


def test_a_resumed_run_counts_from_where_it_began(make_run, monkeypatch):
    story = Story(make_run(total_steps=100, step=50, train_seconds=1e6), monkeypatch)
    story.train(1, 60.0)
    story.train(9, 0.9)
    assert story.evaluate(2.0) == pytest.approx(4.0 + 4 * 2.0)
    run = make_run(total_steps=100, config={"trainer": {"evaluate_every_epochs": 5}})
    story = Story(run, monkeypatch)
    story.train(1, 60.0)
    story.train(49, 4.9)
    assert story.evaluate(5.0) == pytest.approx(5.0 + 5.0)
