"""The edges of chunks."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trainer.hook import HostHook
from trainer.run.cadence import CHUNK_SECONDS, Cadence


class Wish(HostHook):
    """Ask for the loop to come up at one step."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def state_dict(self):
        return {}

    def next_step(self, step):
        return self.step


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
    expected = sorted(
        {min(total, math.ceil(round(k * every * steps_per_epoch, 6))) for k in range(1, epochs // every + 2)}
    )
    assert evaluations == [each for each in expected if each <= total]


def test_hooks_wishes_are_kept_and_past_or_absent_ones_ignored() -> None:
    cadence = Cadence(1000, 100.0, 1, None)
    assert cadence.next_edge(10, [Wish(37), Wish(55)], 1e-9) == 37
    assert cadence.next_edge(40, [Wish(37), Wish(None)], 1e-9) == 100


def test_slow_steps_come_up_after_half_a_second() -> None:
    cadence = Cadence(1000, 1000.0, 1, None)
    assert cadence.next_edge(0, [], CHUNK_SECONDS / 10) == 10
    assert cadence.next_edge(0, [], 60.0) == 1


def test_first_chunk_is_a_single_step() -> None:
    assert Cadence(1000, 100.0, 1, None).next_edge(0, [], None) == 1


def test_reports_may_come_every_n_steps() -> None:
    cadence = Cadence(25, 100.0, 1, 10)
    assert [cadence.next_report(step) for step in (0, 9, 10, 20, 24)] == [10, 10, 20, 25, 25]
