"""When shares grow: rising steps that fit the run, and shares that end with everything."""

from __future__ import annotations

from typing import Any

import pytest

from hooks.quantization.accumulated_shares import change_steps, check_shares
from trainer.errors import UserError


def steps(count: int = 4, begin: float = 0.0, apart: float | None = None, total: int = 100, epoch: float = 4.0):
    return change_steps(count, begin_epoch=begin, step_epochs=apart, total_steps=total, steps_per_epoch=epoch)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [0, 25, 50, 75]),
        ({"begin": 5}, [20, 40, 60, 80]),
        ({"apart": 2}, [0, 8, 16, 24]),
        ({"apart": 0.5, "begin": 1.25}, [5, 7, 9, 11]),
        ({"count": 1}, [0]),
        ({"count": 1, "begin": 3}, [12]),
        ({"apart": 1, "epoch": 3.3}, [0, 4, 7, 10]),
        ({"total": 4, "epoch": 2.0}, [0, 1, 2, 3]),
    ],
)
def test_shares_grow_at_the_first_step_of_their_epoch(arguments: dict, expected: list[int]):
    assert steps(**arguments) == expected


@pytest.mark.parametrize("arguments", [{"apart": 5, "begin": 10}, {"count": 1, "begin": 25}, {"count": 2, "apart": 25}])
def test_a_share_at_the_very_end_falls_on_the_last_step(arguments: dict):
    assert steps(**arguments)[-1] == 99


def test_two_at_the_end_of_the_run_meet_in_its_last_step():
    assert steps(2, begin=24.75, apart=0.25) == [99, 99]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"apart": 9}, "The last of 4 shares would be quantized at epoch 27, after the end of the run, epoch 25. "),
        ({"begin": 26}, "The last of 4 shares would be quantized at epoch 26, after the end of the run, epoch 25. "),
        ({"begin": 25}, "Two of 4 shares would be quantized in one step: 0 steps apart. "),
        ({"apart": 0.1}, "Two of 4 shares would be quantized in one step: 0.4 steps apart. "),
        ({"total": 2}, "Two of 4 shares would be quantized in one step: 0.5 steps apart. "),
    ],
)
def test_a_plan_that_does_not_fit_the_run_is_refused_in_one_line(arguments: dict, message: str):
    with pytest.raises(UserError, match=f"^{message}Expected .* or a longer run with trainer.epochs.$"):
        steps(**arguments)


@pytest.mark.parametrize("value", [[1], [0.5, 1.0], (0.5, 0.75, 0.875, 1)])
def test_rising_shares_that_end_with_one_are_taken(value: Any):
    assert check_shares("shares", value) == [float(each) for each in value]


@pytest.mark.parametrize(
    "value", [[], 1.0, "1", [0.5, 0.9], [0.0, 1.0], [0.5, 0.5, 1.0], [0.9, 0.5, 1.0], [0.5, 1.5], [True], ["0.5", 1.0]]
)
def test_other_shares_are_refused_in_one_line(value: Any):
    with pytest.raises(UserError, match="^Invalid shares: .* Expected rising shares above 0 that end with 1"):
        check_shares("shares", value)
