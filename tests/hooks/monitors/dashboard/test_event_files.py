"""The profile of a few steps: taken once, between two edges, and never the end of a run."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hookline.hooks.monitors.dashboard.event_files import StepProfile
from hookline.trainer.run.control import Cadence


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda directory: made.append(("start", directory)))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: made.append("stop"))
    return made


def walk(profile, step, total):
    """Go from edge to edge as a run does; return the edges that the profile asked for."""
    edges = []
    while step < total:
        step = profile.next_step(step) or total
        profile.at_edge(step, "folder")
        edges.append(step)
    return edges


@pytest.mark.parametrize(
    ("step", "total", "epoch", "edges"),
    [
        (0, 100, 30.0, [20, 25, 100]),
        (0, 100, 10.0, [21, 26, 100]),  # not from an evaluation on
        (7, 100, 30.0, [31, 36, 100]),  # resumed, not over an evaluation
        (0, 1966, 1258 / 64, [21, 26, 1966]),
        (0, 9, 3.0, [4, 9]),
    ],
)
def test_it_begins_after_the_warm_up(calls, step, total, epoch, edges) -> None:
    profile = StepProfile(5)
    profile.plan(step, total, epoch)
    assert walk(profile, step, total) == edges
    assert calls == [("start", "folder"), "stop"]


def test_without_steps_to_warm_up_none_is_taken_and_the_end_ends_one(calls) -> None:
    none, profile = StepProfile(0), StepProfile(5)
    with pytest.warns(UserWarning, match="profile_steps=5 of the 5 steps to come leave none to warm up"):
        profile.plan(0, 5, 10.0)
    none.plan(0, 100, 10.0)
    assert (walk(profile, 0, 5), walk(none, 0, 100), calls) == ([5], [100], [])
    profile = StepProfile(5)
    profile.plan(0, 100, 30.0)
    profile.at_edge(20, "folder")
    profile.stop()
    profile.stop()
    assert (calls, profile.next_step(20)) == ([("start", "folder"), "stop"], None)


@given(st.integers(0, 300), st.integers(60, 400), st.integers(7 * 64, 200 * 64))
def test_no_evaluation_is_in_it_where_an_epoch_and_the_rest_have_room(step, left, examples) -> None:
    steps_per_epoch, total = examples / 64, step + left
    profile, cadence = StepProfile(5), Cadence(total, steps_per_epoch, 1, None)
    profile.plan(step, total, steps_per_epoch)
    begin = profile.next_step(step)
    assert step < begin <= total - 5
    assert cadence.next_evaluation(begin - 1) >= begin + 5
