"""Keras learning-rate schedules: one cycle, and wrappers for warm-up, several updates per step and a scale factor."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import keras
import tensorflow as tf


class _Holder(keras.optimizers.schedules.LearningRateSchedule):
    """Wrap another schedule, with a number in the attribute that NUMBER names."""

    NUMBER: ClassVar[str]

    def __init__(self, schedule: Any, number: Any) -> None:
        super().__init__()
        self.schedule = schedule
        setattr(self, self.NUMBER, number)

    def get_config(self) -> dict[str, Any]:
        number = getattr(self, self.NUMBER)
        number = float(number.numpy()) if isinstance(number, tf.Variable) else number
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), self.NUMBER: number}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config[cls.NUMBER])


@keras.saving.register_keras_serializable(package="hookline")
class Warmup(_Holder):
    """Multiply a schedule or a constant rate by a factor that rises linearly from 0 to 1 over the first `steps`."""

    NUMBER = "steps"
    steps: int

    def __call__(self, step: Any) -> tf.Tensor:
        rate = self.schedule(step) if callable(self.schedule) else self.schedule
        return tf.cast(rate, tf.float32) * tf.minimum(tf.cast(step, tf.float32) / self.steps, 1.0)


@keras.saving.register_keras_serializable(package="hookline")
class OneCycle(keras.optimizers.schedules.LearningRateSchedule):
    """Rise from `first_fraction` to all of the rate, then fall to `final_fraction` of it, each along half a cosine."""

    def __init__(self, rate: float, top: int, total: int, first_fraction: float, final_fraction: float) -> None:
        super().__init__()
        self.rate, self.top, self.total = rate, top, total
        self.first_fraction, self.final_fraction = first_fraction, final_fraction

    def __call__(self, step: Any) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rising = step < self.top
        low = tf.where(rising, self.first_fraction, self.final_fraction)
        left = (self.top - step) / self.top
        passed = (step - self.top) / max(1, self.total - self.top)
        share = (1.0 + tf.cos(math.pi * tf.clip_by_value(tf.where(rising, left, passed), 0.0, 1.0))) / 2.0
        return self.rate * (low + (1.0 - low) * share)

    def get_config(self) -> dict[str, Any]:
        shares = {"first_fraction": self.first_fraction, "final_fraction": self.final_fraction}
        return {"rate": self.rate, "top": self.top, "total": self.total, **shares}


@keras.saving.register_keras_serializable(package="hookline")
class SeveralUpdates(_Holder):
    """Apply a schedule over steps to an optimizer that makes several updates in each step."""

    NUMBER = "updates"
    updates: int

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the rate of the step that an update belongs to."""
        return tf.cast(self.schedule(tf.cast(step, tf.int64) // self.updates), tf.float32)


@keras.saving.register_keras_serializable(package="hookline")
class ScaledRate(_Holder):
    """Multiply a schedule by `factor`, a variable that can be lowered during the run."""

    NUMBER = "factor"

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, factor: float = 1.0) -> None:
        variable = tf.Variable(factor, trainable=False, dtype=tf.float32, name="learning_rate_factor")
        super().__init__(schedule, variable)

    def __call__(self, step: Any) -> tf.Tensor:
        return tf.cast(self.schedule(step), tf.float32) * self.factor
