"""Learning-rate schedules: constant, step, cosine, exponential and one-cycle; all but the last may have a warm-up.

Each takes the full rate and the steps of the run. During the warm-up the rate rises from 0, for `warmup_steps`, fewer
than all, or for `warmup_fraction` of all steps, in [0, 1). Values out of range raise a `UserError`.
"""

from __future__ import annotations

from typing import TypeAlias

import keras

from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, check_integer, check_number

Schedule: TypeAlias = "keras.optimizers.schedules.LearningRateSchedule"


def _check_warmup(warmup_steps: int, warmup_fraction: float) -> None:
    check_number("schedule.warmup_fraction", warmup_fraction, 0, 1, below_maximum=True)
    check_integer("schedule.warmup_steps", warmup_steps, 0)
    if warmup_steps and warmup_fraction:
        raise UserError("schedule.warmup_steps and schedule.warmup_fraction are both set. Expected one of them.")


def _check_cosine(final_fraction: float, warmup_steps: int, warmup_fraction: float) -> None:
    check_number("schedule.final_fraction", final_fraction, 0, 1)
    _check_warmup(warmup_steps, warmup_fraction)


@prechecked(_check_warmup)
def constant(
    learning_rate: float, total_steps: int, *, warmup_steps: int = 0, warmup_fraction: float = 0.0
) -> float | Schedule:
    """Return a constant rate, with an optional warm-up."""
    return _warmed(learning_rate, _warmup_length(total_steps, warmup_steps, warmup_fraction))


@prechecked(_check_warmup)
def step(
    learning_rate: float,
    total_steps: int,
    *,
    milestones: list[float],
    factor: float = 0.1,
    warmup_steps: int = 0,
    warmup_fraction: float = 0.0,
) -> float | Schedule:
    """Return a rate that is multiplied by a factor above 0 at each milestone.

    The milestones are increasing fractions of all steps, in (0, 1), each at a different step.
    """
    starts = [round(milestone * total_steps) for milestone in milestones]
    if any(not 0 < start < total_steps for start in starts) or sorted(set(starts)) != starts:
        raise UserError(f"schedule.milestones={milestones} for {total_steps} steps. Expected rising shares in (0, 1).")
    check_number("schedule.factor", factor, 0, above_minimum=True)
    warmup = _warmup_length(total_steps, warmup_steps, warmup_fraction)
    rates = [learning_rate * factor**power for power in range(len(starts) + 1)]
    if not starts:
        return _warmed(learning_rate, warmup)
    # Keras expects the last step of each rate.
    return _warmed(keras.optimizers.schedules.PiecewiseConstantDecay([start - 1 for start in starts], rates), warmup)


@prechecked(_check_cosine)
def cosine(
    learning_rate: float,
    total_steps: int,
    *,
    final_fraction: float = 0.0,
    warmup_steps: int = 0,
    warmup_fraction: float = 0.0,
) -> Schedule:
    """Return a rate that falls along half a cosine (Loshchilov and Hutter, SGDR, 2017, equation 5, one period).

    It would reach `final_fraction`, in [0, 1], of the full rate one step after the last.
    """
    warmup = _warmup_length(total_steps, warmup_steps, warmup_fraction)
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0 if warmup else learning_rate,
        decay_steps=total_steps - warmup,
        alpha=final_fraction,
        warmup_target=learning_rate if warmup else None,
        warmup_steps=warmup,
    )


def _check_exponential(final_fraction: float, warmup_steps: int, warmup_fraction: float) -> None:
    check_number("schedule.final_fraction", final_fraction, 0, 1, above_minimum=True)
    _check_warmup(warmup_steps, warmup_fraction)


@prechecked(_check_exponential)
def exponential(
    learning_rate: float,
    total_steps: int,
    *,
    final_fraction: float = 0.01,
    warmup_steps: int = 0,
    warmup_fraction: float = 0.0,
) -> Schedule:
    """Return a rate that decays by the same factor in every step, to `final_fraction`, in (0, 1], of the full rate.

    It also decays during the warm-up, which multiplies it.
    """
    falling = keras.optimizers.schedules.ExponentialDecay(learning_rate, total_steps, final_fraction)
    return _warmed(falling, _warmup_length(total_steps, warmup_steps, warmup_fraction))


def _check_one_cycle(first_fraction: float, peak: float, final_fraction: float) -> None:
    check_number("schedule.first_fraction", first_fraction, 0, 1)
    check_number("schedule.final_fraction", final_fraction, 0, 1)
    check_number("schedule.peak", peak, 0, 1, above_minimum=True, below_maximum=True)


@prechecked(_check_one_cycle)
def one_cycle(
    learning_rate: float,
    total_steps: int,
    *,
    first_fraction: float = 0.04,
    peak: float = 0.3,
    final_fraction: float = 4e-6,
) -> Schedule:
    """Return a rate that rises to the full rate, then falls far below its initial value, each along half a cosine.

    "Super-convergence" of Smith and Topin 2018 (arXiv 1708.07120), with the defaults of PyTorch's OneCycleLR. The full
    rate, which may be several times the usual one, is reached at `peak`, a fraction of all steps.
    """
    from hookline.trainer.rate_schedules import OneCycle

    top = max(1, round(peak * total_steps))
    return OneCycle(learning_rate, top, total_steps, first_fraction, final_fraction)


def _warmed(schedule: float | Schedule, warmup: int) -> float | Schedule:
    from hookline.trainer.rate_schedules import Warmup  # loads Keras, which checks of options do not need

    return Warmup(schedule, warmup) if warmup else schedule


def _warmup_length(total_steps: int, warmup_steps: int, warmup_fraction: float) -> int:
    """Return the number of warm-up steps."""
    if warmup_steps >= total_steps:
        raise UserError(
            f"schedule.warmup_steps={warmup_steps} received for {total_steps} steps. Expected fewer than all steps."
        )
    return warmup_steps or int(warmup_fraction * total_steps)
