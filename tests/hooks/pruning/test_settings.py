"""Pruning options: valid values and combinations, when masks change and how sparse they become."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.hooks.prune import Prune
from hookline.hooks.pruning import settings
from hookline.hooks.pruning.settings import polynomial_sparsity, update_steps
from tests.support.refusals import assert_refused

DEFAULTS = {name: default for name, (default, _) in settings.USERS.items()}


OPTIONS = {"layers": "*", "final_sparsity": "auto", "begin_epoch": 0.0, "scope": "per_layer", "criterion": "magnitude"}


def schedule(name: str = "polynomial", **changes) -> settings.Settings:
    return settings.Settings(**{"schedule": name, "structure": "unstructured", **OPTIONS, **DEFAULTS, **changes})


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


def test_cubic_schedule_matches_the_paper():
    steps = np.arange(10, 111)
    expected = 0.9 + (0.2 - 0.9) * (1 - (steps - 10) / 100) ** 3
    found = [polynomial_sparsity(int(t), begin=10, end=110, initial=0.2, final=0.9, power=3) for t in steps]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    arguments = {"begin": 10, "end": 20, "initial": 0.1, "final": 0.9, "power": 3.0}
    assert polynomial_sparsity(0, **arguments) == polynomial_sparsity(10, **arguments) == pytest.approx(0.1)
    assert polynomial_sparsity(99, **arguments) == 0.9


def test_update_steps_of_each_schedule():
    assert update_steps(0, 190, 100) == [0, 100, 190]  # the end is included even if the frequency does not divide it
    assert update_steps(0, 100, 10, 2.0) == [0, 10, 30, 70, 100]
    assert schedule(end_epoch=4.0, frequency=7).steps(100, 10.0)[-1] == 39  # final by the end of the epoch
    assert schedule(end_epoch=10.0).steps(100, 10.0)[-1] == 99
    assert schedule(end_epoch=4.0, begin_epoch=4.0).steps(100, 10.0) == [40]
    assert schedule(begin_epoch=2.0, frequency=10).steps(100, 10.0) == [20, 30, 40, 50, 59]  # the rest is for recovery
    assert schedule("one_shot", begin_epoch=3.0).steps(100, 10.0) == [30]
    stages = schedule("iterative", begin_epoch=1.0, stages=[0.1, 0.2, 0.3], stage_epochs=2.5)
    assert stages.steps(100, 10.0) == [10, 35, 60]
    constant = schedule("constant", end_epoch=5.0, frequency=20)
    assert constant.steps(100, 10.0) == [0, 20, 40, 49]
    assert constant.sparsities([0, 20], 0.7) == [0.7] * 2
    assert schedule("splicing").sparsities([0, 50, 100], 0.8) == schedule("polynomial").sparsities([0, 50, 100], 0.8)


def test_settings_that_do_not_fit_the_run_are_refused():
    for name, value in {"begin_epoch": math.nan, "frequency": 2.5, "power": 0, "end_epoch": -1}.items():
        assert_refused(name, schedule, **{name: value})
    for made, word in (
        (schedule(begin_epoch=10.0), "begin_epoch"),
        (schedule(end_epoch=11.0), "end_epoch"),
        (schedule("iterative", stages=[0.1, 0.2, 0.3, 0.4, 0.5], stage_epochs=3.0), "5 stages"),
    ):
        assert_refused(word, made.steps, 100, 10.0)
    settings.check_used("splicing", {**DEFAULTS, "hysteresis": 7})
    assert_refused("hysteresis", settings.check_used, "polynomial", {**DEFAULTS, "hysteresis": 7})


def test_invalid_options_are_named_in_the_error():
    for arguments, word in (
        ({"structure": "chanel"}, "chanel"),
        ({"structure": {"n_m": [4, 2]}}, "n < m"),
        ({"final_sparsity": {"fc1": 2}}, "fc1"),
        ({"final_sparsity": 0.9, "structure": {"n_m": [2, 4]}}, "contradicts"),
        ({"scope": "global", "structure": {"n_m": [2, 4]}}, "scope"),
        ({"schedule": "splicing", "hysteresis": 0.9}, "hysteresis"),
        ({"schedule": "iterative", "stage_epochs": 1, "stages": [0.5, 1.5]}, "stages"),
    ):
        assert_refused(word, Prune, **arguments)
