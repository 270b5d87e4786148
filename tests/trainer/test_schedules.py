"""The learning rate of every step, compared with the formulas."""

import math

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.trainer import rate_schedules, schedules
from tests.support.refusals import assert_refused


def rates(schedule, steps):
    return [float(schedule(step)) if callable(schedule) else float(schedule) for step in range(steps)]  # type: ignore[arg-type]


def test_constant_and_step_schedules_with_warmup():
    assert schedules.constant(0.1, 100) == 0.1
    assert schedules.step(0.3, 8, milestones=[]) == 0.3
    warm = schedules.constant(0.4, 8, warmup_steps=4)
    assert rates(warm, 8) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])
    assert rates(schedules.constant(0.4, 8, warmup_fraction=0.5), 8) == rates(warm, 8)
    falling = schedules.step(1.0, 8, milestones=[0.5, 0.75], factor=0.1)
    assert rates(falling, 8) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    both = schedules.step(1.0, 8, milestones=[0.5], factor=0.1, warmup_steps=2)
    assert rates(both, 8) == pytest.approx([0, 0.5, 1, 1, 0.1, 0.1, 0.1, 0.1])


@given(total=st.integers(2, 200), final=st.floats(0, 1), share=st.floats(0, 0.9))
def test_cosine_follows_its_formula(total, final, share):
    warmup = int(share * total)
    schedule = schedules.cosine(0.2, total, final_fraction=final, warmup_fraction=share)
    for step in {0, warmup // 2, warmup, (warmup + total) // 2, total - 1, total}:
        if step < warmup:
            expected = 0.2 * step / warmup
        else:
            progress = (step - warmup) / (total - warmup)
            expected = 0.2 * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)
        assert float(schedule(step)) == pytest.approx(expected, abs=1e-6)


def test_exponential_and_one_cycle_follow_their_formulas():
    falling = schedules.exponential(0.5, 4, final_fraction=1 / 16)
    assert rates(falling, 5) == pytest.approx([0.5 / 2**n for n in range(5)])
    schedule = schedules.one_cycle(2.0, 100, first_fraction=0.1, peak=0.25, final_fraction=0.01)
    found = rates(schedule, 101)
    assert [found[step] for step in (0, 25, 100)] == pytest.approx([0.2, 2.0, 0.02], rel=1e-5)
    assert found[10] == pytest.approx(2.0 * (0.1 + 0.9 * (1 - math.cos(math.pi * 10 / 25)) / 2), rel=1e-5)
    assert found[75] == pytest.approx(2.0 * (0.01 + 0.99 * (1 + math.cos(math.pi * 50 / 75)) / 2), rel=1e-5)
    again = type(schedule).from_config(schedule.get_config())
    assert rates(again, 101) == found


def test_several_updates_use_the_rate_of_their_step_and_scaling_is_exact():
    once = schedules.cosine(1.0, 8, warmup_steps=2)
    several = rate_schedules.SeveralUpdates(once, 3)  # type: ignore[arg-type]
    expected = [rate for rate in rates(once, 8) for _ in range(3)]
    assert rates(several, 24) == expected
    assert rates(rate_schedules.SeveralUpdates.from_config(several.get_config()), 24) == expected
    scaled = rate_schedules.ScaledRate(once)  # type: ignore[arg-type]
    assert rates(scaled, 8) == rates(once, 8)  # to the bit
    scaled.factor.assign(0.5)
    assert rates(scaled, 8) == [0.5 * rate for rate in rates(once, 8)]
    again = rate_schedules.ScaledRate.from_config(scaled.get_config())
    assert rates(again, 8) == rates(scaled, 8)
    optimizer = keras.optimizers.Adam(rate_schedules.Warmup(keras.optimizers.schedules.CosineDecay(0.3, 10), 4))
    again = keras.optimizers.Adam.from_config(optimizer.get_config())
    assert rates(again._learning_rate, 8) == rates(optimizer._learning_rate, 8)


def test_out_of_range_values_are_refused():
    for kind, options, word in (
        ("constant", {"warmup_fraction": 1.0}, "warmup_fraction=1.0"),
        ("cosine", {"warmup_steps": 10}, "warmup_steps=10"),
        ("cosine", {"warmup_steps": 1, "warmup_fraction": 0.1}, "both set"),
        ("cosine", {"final_fraction": 1.5}, "final_fraction=1.5"),
        ("step", {"milestones": [0.5, 0.51]}, "milestones"),
        ("step", {"milestones": [0.5], "factor": 0.0}, "factor=0.0"),
    ):
        assert_refused(word, getattr(schedules, kind), 1.0, 10, **options)
