"""The profile of a few steps: taken once, between two edges, and never the end of a run."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hookline.hooks.monitors.dashboard.event_files import StepProfile


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
