"""Schedules of the learning rate: constant, in steps, along a cosine; each after an optional linear warm-up."""

from __future__ import annotations

import keras

from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError


def check_warmup(warmup_steps: int, warmup_fraction: float) -> None:
    """Check a warm-up for a run of any length.

    Args:
        warmup_steps: at least 0.
        warmup_fraction: in [0, 1).

    Raises:
        UserError: out of range, or both are set.
    """
    if not 0 <= warmup_fraction < 1:
        raise UserError(f"schedule.warmup_fraction={warmup_fraction} received. Expected a number in [0, 1).")
    if warmup_steps < 0:
        raise UserError(f"schedule.warmup_steps={warmup_steps} received. Expected a whole number of at least 0.")
    if warmup_steps and warmup_fraction:
        raise UserError(
            f"schedule.warmup_steps={warmup_steps} and schedule.warmup_fraction={warmup_fraction} are both set. "
            "Expected one of them."
        )


def check_cosine(final_fraction: float, warmup_steps: int, warmup_fraction: float) -> None:
    """Check the arguments of `cosine` for a run of any length.

    Args:
        final_fraction: in [0, 1].
        warmup_steps: as for `check_warmup`.
        warmup_fraction: likewise.

    Raises:
        UserError: out of range.
    """
    if not 0 <= final_fraction <= 1:
        raise UserError(f"schedule.final_fraction={final_fraction} received. Expected a number in [0, 1].")
    check_warmup(warmup_steps, warmup_fraction)


@prechecked(check_warmup)
def constant(
    learning_rate: float, total_steps: int, *, warmup_steps: int = 0, warmup_fraction: float = 0.0
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """Return the same rate for every step.

    Args:
        learning_rate: the full rate.
        total_steps: steps of the run.
        warmup_steps: steps over which the rate rises from 0.
        warmup_fraction: the same as a share of all steps, in [0, 1).

    Raises:
        UserError: a warm-up out of range.
    """
    warmup = warmup_length(total_steps, warmup_steps, warmup_fraction)
    from hookline.trainer.rate_schedules import Warmup  # a class of Keras: not for a look at options

    return Warmup(learning_rate, warmup) if warmup else learning_rate


@prechecked(check_warmup)
def step(
    learning_rate: float,
    total_steps: int,
    *,
    milestones: list[float],
    factor: float = 0.1,
    warmup_steps: int = 0,
    warmup_fraction: float = 0.0,
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    """Return a rate that is multiplied by a factor at each milestone.

    Args:
        learning_rate: the rate before the first milestone.
        total_steps: steps of the run.
        milestones: shares of all steps, rising, in (0, 1).
        factor: above 0.
        warmup_steps: steps over which the rate rises from 0.
        warmup_fraction: the same as a share of all steps, in [0, 1).

    Raises:
        UserError: milestones that do not rise within the run, a factor of 0 or less, or a warm-up out of range.
    """
    starts = [round(milestone * total_steps) for milestone in milestones]
    if any(not 0 < start < total_steps for start in starts) or sorted(set(starts)) != starts:
        raise UserError(
            f"schedule.milestones={milestones} received for {total_steps} steps. "
            "Expected rising shares in (0, 1), each at a step of its own."
        )
    if factor <= 0:
        raise UserError(f"schedule.factor={factor} received. Expected a number above 0.")
    warmup = warmup_length(total_steps, warmup_steps, warmup_fraction)
    rates = [learning_rate * factor**power for power in range(len(starts) + 1)]
    schedule: float | keras.optimizers.schedules.LearningRateSchedule = learning_rate
    if starts:  # Keras takes the last step of each rate
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay([start - 1 for start in starts], rates)
    from hookline.trainer.rate_schedules import Warmup  # a class of Keras: not for a look at options

    return Warmup(schedule, warmup) if warmup else schedule


@prechecked(check_cosine)
def cosine(
    learning_rate: float,
    total_steps: int,
    *,
    final_fraction: float = 0.0,
    warmup_steps: int = 0,
    warmup_fraction: float = 0.0,
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return a rate that falls along half a cosine (Loshchilov and Hutter, SGDR, 2017, equation 5, one period).

    Args:
        learning_rate: the rate at the top.
        total_steps: steps of the run; the last one has nearly the final rate.
        final_fraction: the rate at the end as a share of the full one, in [0, 1].
        warmup_steps: steps over which the rate rises from 0, before the cosine.
        warmup_fraction: the same as a share of all steps, in [0, 1).

    Raises:
        UserError: a fraction or a warm-up out of range.
    """
    check_cosine(final_fraction, 0, 0.0)
    warmup = warmup_length(total_steps, warmup_steps, warmup_fraction)
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0 if warmup else learning_rate,
        decay_steps=total_steps - warmup,
        alpha=final_fraction,
        warmup_target=learning_rate if warmup else None,
        warmup_steps=warmup,
    )


def warmup_length(total_steps: int, warmup_steps: int, warmup_fraction: float) -> int:
    """Return the steps of the warm-up.

    Args:
        total_steps: steps of the run.
        warmup_steps: in [0, total_steps).
        warmup_fraction: in [0, 1).

    Raises:
        UserError: out of range, or both are set.
    """
    if not 0 <= warmup_steps < total_steps:
        raise UserError(
            f"schedule.warmup_steps={warmup_steps} received for {total_steps} steps. "
            "Expected a whole number of at least 0 and fewer than all steps."
        )
    check_warmup(warmup_steps, warmup_fraction)
    return warmup_steps or int(warmup_fraction * total_steps)
