"""What the runs of objectives hand out, added up to what a step does."""

from __future__ import annotations

import pytest
import tensorflow as tf

from trainer.step.step_result import StepResult


def flag(value: bool | None) -> tf.Tensor | None:
    return None if value is None else tf.constant(value)


def run(
    loss: float, count: float = 1.0, *, veto: bool = False, held: bool | None = None, overflow: bool | None = None
) -> StepResult:
    sums = {"loss": (tf.constant(loss), tf.constant(count))}
    return StepResult(sums, {"nan": tf.constant(veto)}, flag(held), flag(overflow))


def test_metrics_become_averages_over_the_runs_that_counted_and_objectives_stay_apart() -> None:
    step = StepResult()
    for prefix, each in (("one/", run(2.0)), ("two/", run(10.0)), ("one/", run(4.0)), ("one/", run(0.0, 0.0))):
        step.add(each, prefix)
    found = {name: (float(total), float(count)) for name, (total, count) in step.sums.items()}
    assert found == {"one/loss": (6.0, 2.0), "two/loss": (10.0, 1.0)}


@pytest.mark.parametrize("raised", [0, 1, 2])
def test_a_veto_of_any_run_is_one_of_its_objective_alone(raised: int) -> None:
    step = StepResult()
    for number, prefix in enumerate(("one/", "one/", "two/")):
        step.add(run(0.0, veto=number == raised), prefix)
    assert {name: bool(veto) for name, veto in step.vetoes.items()} == {"one/nan": raised < 2, "two/nan": raised == 2}


@pytest.mark.parametrize(
    ("overflows", "expected"),
    [((None, None), None), ((None, True), True), ((True, False), True), ((False, False), False), ((True, None), True)],
)
def test_one_overflow_is_the_steps_and_without_a_scale_there_is_none(overflows: tuple, expected: bool | None) -> None:
    step = StepResult()
    for overflow in overflows:
        step.add(run(0.0, overflow=overflow), "")
    assert (step.overflow is None) == (expected is None)
    assert expected is None or bool(step.overflow) is expected


def test_what_holds_the_next_run_back_is_what_the_latest_says() -> None:
    step = StepResult()
    assert step.held_back is None
    for held in (False, True):  # the run itself heeds what came before it
        step.add(run(0.0, held=held), "")
        assert bool(step.held_back) is held
