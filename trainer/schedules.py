"""Schedules of the learning rate: constant, in steps, along a cosine; each after an optional linear warm-up."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError


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
    return Warmup(learning_rate, warmup) if warmup else learning_rate


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
    return Warmup(schedule, warmup) if warmup else schedule


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
    if not 0 <= final_fraction <= 1:
        raise UserError(f"schedule.final_fraction={final_fraction} received. Expected a number in [0, 1].")
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
    if not 0 <= warmup_fraction < 1:
        raise UserError(f"schedule.warmup_fraction={warmup_fraction} received. Expected a number in [0, 1).")
    if not 0 <= warmup_steps < total_steps:
        raise UserError(
            f"schedule.warmup_steps={warmup_steps} received for {total_steps} steps. "
            "Expected a whole number of at least 0 and fewer than all steps."
        )
    if warmup_steps and warmup_fraction:
        raise UserError(
            f"schedule.warmup_steps={warmup_steps} and schedule.warmup_fraction={warmup_fraction} are both set. "
            "Expected one of them."
        )
    return warmup_steps or int(warmup_fraction * total_steps)


@keras.saving.register_keras_serializable(package="hookline")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Raise the rate linearly from 0 over the first steps, then follow another schedule."""

    def __init__(self, schedule: float | keras.optimizers.schedules.LearningRateSchedule, steps: int) -> None:
        """Wrap a schedule.

        Args:
            schedule: a rate, or a schedule that counts steps from the start of the run.
            steps: length of the warm-up, at least 1. Step 0 has the rate 0.
        """
        super().__init__()
        self.schedule = schedule
        self.steps = steps

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of a step.

        Args:
            step: scalar, optimizer steps made before.

        Returns:
            float32 scalar.
        """
        rate = self.schedule(step) if callable(self.schedule) else self.schedule
        return tf.cast(rate, tf.float32) * tf.minimum(tf.cast(step, tf.float32) / self.steps, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Return plain values that `from_config` makes this schedule of."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "steps": self.steps}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Warmup:
        """Return the schedule that `get_config` described."""
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["steps"])


@keras.saving.register_keras_serializable(package="hookline")
class SeveralUpdates(keras.optimizers.schedules.LearningRateSchedule):
    """Follow a schedule of steps with an optimizer that makes several updates in each step."""

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, updates: int) -> None:
        """Wrap a schedule.

        Args:
            schedule: counts the steps of the run.
            updates: of the optimizer in a step, at least 1.
        """
        super().__init__()
        self.schedule = schedule
        self.updates = updates

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of an update: that of the step it is made in.

        Args:
            step: scalar, updates made before.

        Returns:
            float32 scalar.
        """
        return tf.cast(self.schedule(tf.cast(step, tf.int64) // self.updates), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Return plain values that `from_config` makes this schedule of."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "updates": self.updates}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SeveralUpdates:
        """Return the schedule that `get_config` described."""
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["updates"])


@keras.saving.register_keras_serializable(package="hookline")
class ScaledRate(keras.optimizers.schedules.LearningRateSchedule):
    """Follow a schedule at a share of its rate, which can be lowered while the run goes on.

    Attributes:
        factor: float32 scalar, 1 at first.
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, factor: float = 1.0) -> None:
        """Wrap a schedule.

        Args:
            schedule: counts the updates of the optimizer.
            factor: share of its rate, above 0.
        """
        super().__init__()
        self.schedule = schedule
        self.factor = tf.Variable(factor, trainable=False, dtype=tf.float32, name="learning_rate_factor")

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of an update.

        Args:
            step: scalar, updates made before.

        Returns:
            float32 scalar.
        """
        return tf.cast(self.schedule(step), tf.float32) * self.factor

    def get_config(self) -> dict[str, Any]:
        """Return plain values that `from_config` makes this schedule of."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "factor": float(self.factor.numpy())}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledRate:
        """Return the schedule that `get_config` described."""
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["factor"])
