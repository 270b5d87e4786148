"""Schedules of Keras that hold another one: after a warm-up, over several updates a step, at a share of its rate."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="hookline")
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """Raise the rate linearly from 0 over the first steps, then follow another schedule."""

    def __init__(self, schedule: float | keras.optimizers.schedules.LearningRateSchedule, steps: int) -> None:
        """Wrap a schedule."""
        super().__init__()
        self.schedule = schedule
        self.steps = steps

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of a step."""
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
        """Wrap a schedule."""
        super().__init__()
        self.schedule = schedule
        self.updates = updates

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of an update: that of the step it is made in."""
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
    """Follow a schedule at a share of its rate, which can be lowered during the run.

    Attributes:
        factor: float32 scalar, 1 at first.
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, factor: float = 1.0) -> None:
        """Wrap a schedule."""
        super().__init__()
        self.schedule = schedule
        self.factor = tf.Variable(factor, trainable=False, dtype=tf.float32, name="learning_rate_factor")

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of an update."""
        return tf.cast(self.schedule(step), tf.float32) * self.factor

    def get_config(self) -> dict[str, Any]:
        """Return plain values that `from_config` makes this schedule of."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "factor": float(self.factor.numpy())}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledRate:
        """Return the schedule that `get_config` described."""
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["factor"])
