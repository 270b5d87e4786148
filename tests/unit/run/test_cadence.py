"""The edges of chunks."""

from __future__ import annotations

import math
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from hookline.trainer.run.control import CHUNK_SECONDS, Cadence


@given(
    size=st.integers(1, 300),
    batch=st.integers(1, 64),
    epochs=st.integers(1, 7),
    every=st.integers(1, 3),
    report=st.none() | st.integers(1, 50),
)
def test_edges_lead_to_the_end_and_pass_no_evaluation_and_no_report(size, batch, epochs, every, report) -> None:
    steps_per_epoch = size / min(batch, size)
    total = math.ceil(epochs * steps_per_epoch)
    cadence = Cadence(total, steps_per_epoch, every, report)
    step, evaluations = 0, []
    while step < total:
        end = cadence.next_edge(step, [], 1e-9)
        assert step < end <= min(cadence.next_evaluation(step), cadence.next_report(step)) <= total
        if end == cadence.next_evaluation(step):
            evaluations.append(end)
        step = end
    assert step == total
    due = {min(total, math.ceil(round(k * every * steps_per_epoch, 6))) for k in range(1, epochs // every + 2)}
    assert evaluations == sorted(due)


def wish(step):
    return SimpleNamespace(next_step=lambda _: step)


def test_wishes_slow_steps_and_the_first_chunk_have_edges_of_their_own() -> None:
    cadence = Cadence(1000, 100.0, 1, None)
    assert cadence.next_edge(10, [wish(37), wish(55)], 1e-9) == 37
    assert cadence.next_edge(40, [wish(37), wish(None)], 1e-9) == 100
    assert cadence.next_edge(0, [], None) == 1
    assert cadence.next_edge(0, [], CHUNK_SECONDS / 10) == 10
    assert cadence.next_edge(0, [], 60.0) == 1
    assert [Cadence(25, 100.0, 1, 10).next_report(step) for step in (0, 9, 10, 20, 24)] == [10, 10, 20, 25, 25]
