"""The learning rate of every step, against the formulas."""

from __future__ import annotations

import math

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import rate_schedules, schedules
from trainer.errors import UserError


def rates(schedule: object, steps: int) -> list[float]:
    return [float(schedule(step)) if callable(schedule) else float(schedule) for step in range(steps)]  # type: ignore[arg-type]


def test_constant_is_the_rate_itself() -> None:
    assert schedules.constant(0.1, 100) == 0.1


def test_constant_after_a_warm_up() -> None:
    assert rates(schedules.constant(0.4, 8, warmup_steps=4), 8) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4])


def test_steps_fall_exactly_at_their_milestones() -> None:
    schedule = schedules.step(1.0, 8, milestones=[0.5, 0.75], factor=0.1)
    assert rates(schedule, 8) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_steps_after_a_warm_up_keep_their_milestones() -> None:
    schedule = schedules.step(1.0, 8, milestones=[0.5], factor=0.1, warmup_steps=2)
    assert rates(schedule, 8) == pytest.approx([0, 0.5, 1, 1, 0.1, 0.1, 0.1, 0.1])


def test_no_milestones_are_a_constant() -> None:
    assert schedules.step(0.3, 8, milestones=[]) == 0.3


@given(
    total=st.integers(2, 200),
    final=st.floats(0, 1),
    share=st.floats(0, 0.9),
)
def test_cosine_follows_its_formula(total: int, final: float, share: float) -> None:
    warmup = int(share * total)
    schedule = schedules.cosine(0.2, total, final_fraction=final, warmup_fraction=share)
    for step in {0, warmup // 2, warmup, (warmup + total) // 2, total - 1, total}:
        if step < warmup:
            expected = 0.2 * step / warmup
        else:
            progress = (step - warmup) / (total - warmup)
            expected = 0.2 * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)
        assert float(schedule(step)) == pytest.approx(expected, abs=1e-6)


def test_a_share_and_a_number_of_steps_mean_the_same() -> None:
    by_share = rates(schedules.constant(1.0, 40, warmup_fraction=0.25), 40)
    assert by_share == rates(schedules.constant(1.0, 40, warmup_steps=10), 40)


def test_an_optimizer_follows_the_schedule() -> None:
    optimizer = keras.optimizers.SGD(schedules.step(1.0, 4, milestones=[0.5], factor=0.5, warmup_steps=1))
    variable = keras.Variable(0.0)
    changes = []
    for _ in range(4):
        before = float(variable)
        optimizer.apply([keras.ops.ones(())], [variable])
        changes.append(before - float(variable))
    assert changes == pytest.approx([0.0, 1.0, 0.5, 0.5])


@pytest.mark.parametrize("inner", [0.3, keras.optimizers.schedules.CosineDecay(0.3, 10)])
def test_an_optimizer_with_a_warm_up_survives_its_config(inner: object) -> None:
    optimizer = keras.optimizers.Adam(rate_schedules.Warmup(inner, 4))  # type: ignore[arg-type]
    again = keras.optimizers.Adam.from_config(optimizer.get_config())
    assert rates(again._learning_rate, 8) == rates(optimizer._learning_rate, 8)


@pytest.mark.parametrize("updates", [1, 3])
def test_several_updates_in_a_step_have_the_rate_of_that_step(updates: int) -> None:
    once = schedules.cosine(1.0, 8, warmup_steps=2)
    several = rate_schedules.SeveralUpdates(once, updates)  # type: ignore[arg-type]
    expected = [rate for rate in rates(once, 8) for _ in range(updates)]
    assert rates(several, 8 * updates) == expected
    again = rate_schedules.SeveralUpdates.from_config(several.get_config())
    assert rates(again, 8 * updates) == expected


def test_a_scaled_rate_is_the_rate_itself_until_it_is_lowered_and_survives_its_config() -> None:
    once = schedules.cosine(0.3, 8, warmup_steps=2)
    scaled = rate_schedules.ScaledRate(once)  # type: ignore[arg-type]
    assert rates(scaled, 8) == rates(once, 8)  # to the bit
    scaled.factor.assign(0.5)
    assert rates(scaled, 8) == [0.5 * rate for rate in rates(once, 8)]
    again = rate_schedules.ScaledRate.from_config(scaled.get_config())
    assert rates(again, 8) == rates(scaled, 8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: schedules.constant(1.0, 10, warmup_fraction=1.0), "schedule.warmup_fraction=1.0 received. Expected a"),
        (lambda: schedules.constant(1.0, 10, warmup_fraction=-0.1), "schedule.warmup_fraction=-0.1 received"),
        (lambda: schedules.cosine(1.0, 10, warmup_steps=10), "schedule.warmup_steps=10 received for 10 steps"),
        (lambda: schedules.cosine(1.0, 10, warmup_steps=-1), "schedule.warmup_steps=-1 received for 10 steps"),
        (lambda: schedules.cosine(1.0, 10, warmup_steps=1, warmup_fraction=0.1), "are both set. Expected one of them."),
        (lambda: schedules.cosine(1.0, 10, final_fraction=1.5), "schedule.final_fraction=1.5 received"),
        (lambda: schedules.step(1.0, 10, milestones=[0.7, 0.3]), "milestones=[0.7, 0.3] received for 10 steps"),
        (lambda: schedules.step(1.0, 10, milestones=[0.5, 0.51]), "each at a step of its own"),
        (lambda: schedules.step(1.0, 10, milestones=[1.0]), "Expected rising shares in (0, 1)"),
        (lambda: schedules.step(1.0, 10, milestones=[0.5], factor=0.0), "schedule.factor=0.0 received"),
    ],
)
def test_values_out_of_range_are_named(build: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        build()  # type: ignore[operator]
    assert message in str(caught.value)
