"""When masks change and how sparse they are then."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.pruning.schedules import (
    DEFAULTS,
    SCHEDULES,
    USERS,
    Schedule,
    check_used,
    kept_units,
    parse_schedule,
    polynomial_sparsity,
    update_steps,
)
from trainer.errors import UserError


def schedule(name: str = "polynomial", **changes) -> Schedule:
    values = {
        "begin_epoch": 0.0,
        "end_epoch": None,
        "frequency": 100,
        "frequency_growth": 1.0,
        "initial_sparsity": 0.0,
        "power": 3.0,
        "stages": 0,
        "stage_epochs": None,
    }
    return parse_schedule({"schedule": name, **values, **changes})


def test_the_end_is_reached_where_the_frequency_does_not_divide_it():
    assert update_steps(0, 190, 100) == [0, 100, 190]
    assert update_steps(0, 200, 100) == [0, 100, 200]
    assert update_steps(7, 8, 100) == [7, 8]
    assert update_steps(5, 5, 1) == [5]


@given(
    begin=st.integers(0, 50),
    length=st.integers(0, 300),
    frequency=st.integers(1, 400),
    growth=st.floats(1.0, 3.0),
    initial=st.floats(0.0, 0.5),
    final=st.floats(0.5, 1.0),
    power=st.floats(0.1, 5.0),
)
def test_sparsity_rises_from_begin_to_end_for_any_frequency(begin, length, frequency, growth, initial, final, power):
    steps = update_steps(begin, begin + length, frequency, growth)
    assert steps[0] == begin
    assert steps[-1] == begin + length
    assert steps == sorted(set(steps))
    assert all(later - earlier >= frequency for earlier, later in itertools.pairwise(steps[:-1]))
    values = [
        polynomial_sparsity(step, begin=begin, end=begin + length, initial=initial, final=final, power=power)
        for step in steps
    ]
    assert values[-1] == final
    assert length == 0 or values[0] == pytest.approx(initial, abs=1e-9)
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(values))


def test_updates_become_rarer():
    assert update_steps(0, 100, 10, 2.0) == [0, 10, 30, 70, 100]


def test_the_cubic_schedule_is_that_of_the_paper():
    steps = np.arange(10, 111)
    expected = 0.9 + (0.2 - 0.9) * (1 - (steps - 10) / 100) ** 3
    found = [polynomial_sparsity(int(t), begin=10, end=110, initial=0.2, final=0.9, power=3) for t in steps]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    half = polynomial_sparsity(60, begin=10, end=110, initial=0.0, final=0.8, power=3)
    assert half == pytest.approx(0.7)


def test_outside_its_steps_the_sparsity_stays():
    arguments = {"begin": 10, "end": 20, "initial": 0.1, "final": 0.9, "power": 3.0}
    assert polynomial_sparsity(0, **arguments) == polynomial_sparsity(10, **arguments) == pytest.approx(0.1)
    assert polynomial_sparsity(99, **arguments) == 0.9


@given(units=st.integers(1, 10_000), sparsity=st.floats(0.0, 1.0))
def test_exactly_the_rounded_share_is_pruned_and_one_stays(units, sparsity):
    kept = kept_units(units, sparsity)
    assert kept == max(1, units - round(sparsity * units))
    assert 1 <= kept <= units


def test_masks_are_final_by_the_end_of_their_epoch():
    assert schedule(end_epoch=4.0, frequency=7).steps(100, 10.0)[-1] == 39
    assert schedule(end_epoch=10.0).steps(100, 10.0)[-1] == 99
    assert schedule(end_epoch=4.0, begin_epoch=4.0).steps(100, 10.0) == [40]


def test_without_an_end_the_second_half_is_left_to_recover():
    assert schedule(begin_epoch=2.0, frequency=10).steps(100, 10.0) == [20, 30, 40, 50, 59]


def test_one_shot_has_one_update_and_stages_one_each():
    assert schedule("one_shot", begin_epoch=3.0).steps(100, 10.0) == [30]
    stages = schedule("iterative", begin_epoch=1.0, stages=3, stage_epochs=2.5)
    assert stages.steps(100, 10.0) == [10, 35, 60]


def test_constant_sparsity_starts_at_its_final_value():
    constant = schedule("constant", end_epoch=5.0, frequency=20)
    steps = constant.steps(100, 10.0)
    assert steps == [0, 20, 40, 49]
    assert constant.sparsities(steps, 0.7) == [0.7] * 4
    assert schedule("one_shot").sparsities([3], 0.7) == [0.7]


def test_splicing_follows_the_polynomial():
    steps = [0, 50, 100]
    assert schedule("splicing").sparsities(steps, 0.8) == schedule("polynomial").sparsities(steps, 0.8)
    assert schedule("splicing", initial_sparsity=0.2).sparsities(steps, 0.8)[0] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("polynomal", {}, "Unknown schedule 'polynomal'. Did you mean 'polynomial'?"),
        (3, {}, "Unknown schedule '3'"),
        ("polynomial", {"begin_epoch": -1}, "Invalid begin_epoch: -1"),
        ("polynomial", {"begin_epoch": "soon"}, "Invalid begin_epoch: 'soon'"),
        ("polynomial", {"begin_epoch": math.nan}, "Invalid begin_epoch: nan"),
        ("polynomial", {"begin_epoch": 5, "end_epoch": 2}, "end_epoch=2.0 is before begin_epoch=5.0"),
        ("polynomial", {"end_epoch": True}, "Invalid end_epoch: True"),
        ("polynomial", {"frequency": 0}, "Invalid frequency: 0"),
        ("polynomial", {"frequency": 2.5}, "Invalid frequency: 2.5"),
        ("polynomial", {"frequency_growth": 0.5}, "Invalid frequency_growth: 0.5"),
        ("polynomial", {"initial_sparsity": 1.5}, "Invalid initial_sparsity: 1.5"),
        ("polynomial", {"power": 0}, "Invalid power: 0"),
        ("iterative", {"stage_epochs": 2.0}, "schedule=iterative needs stages"),
        ("iterative", {"stages": 2}, "Invalid stage_epochs: None"),
        ("iterative", {"stages": 2, "stage_epochs": 0}, "Invalid stage_epochs: 0"),
    ],
)
def test_a_wrong_value_is_one_clear_line(name, changes, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?").replace("[", r"\[")) as error:
        schedule(name, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (schedule(begin_epoch=10.0), "begin_epoch=10 is after its end, epoch 10, step 100"),
        (schedule(end_epoch=11.0), "end_epoch=11 is after its end"),
        (schedule("one_shot", begin_epoch=12.0), "begin_epoch=12 is after"),
        (schedule("iterative", stages=5, stage_epochs=3.0), "the last of 5 stages, epoch=12 is after its end"),
        (schedule("iterative", stages=3, stage_epochs=0.01), "stage_epochs=0.01 is less than a step"),
    ],
)
def test_a_schedule_that_does_not_fit_into_the_run_is_refused(made, message):
    with pytest.raises(UserError, match=message):
        made.steps(100, 10.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_option_that_a_schedule_does_not_use_is_refused(name):
    other = {"stages": [0.5], "end_epoch": 3.0, "stage_epochs": 2.0}
    check_used(name, DEFAULTS)
    for option, users in USERS.items():
        given = {**DEFAULTS, option: other.get(option, 7)}
        if name in users:
            check_used(name, given)
        else:
            with pytest.raises(UserError, match=f"{option}=.* has no effect with schedule={name}"):
                check_used(name, given)
