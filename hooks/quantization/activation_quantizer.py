"""The layer that quantizes a tensor of a network as an integer runtime holds it, and that which holds learned steps."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.quantization.activation_places import Pass, Point


@keras.saving.register_keras_serializable(package="hookline")
class ActivationQuantizer(keras.layers.Layer):
    """Return its input, rounded to the range of its point where a hook is at work; it has no variables."""

    def __init__(self, point: int, observes: bool = True, averages: bool = False, **options: Any) -> None:
        """Take a point.

        Args:
            point: whose range counts.
            observes: whether its input moves the range.
            averages: whether its input are means of levels.
            **options: of a Keras layer.
        """
        super().__init__(**{**options, "autocast": False})
        self.point = Point(point, observes, averages)
        self.supports_masking = True
        self.now = Pass()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.now(self.point, inputs)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return what `call` returns, without running it."""
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        point = {"point": self.point.index, "observes": self.point.observes, "averages": self.point.averages}
        config = {**super().get_config(), **point}
        config.pop("autocast", None)
        return config


@keras.saving.register_keras_serializable(package="hookline")
class StepSizes(keras.layers.Layer):
    """Return its input; hold a factor for each quantization step, 1 at first, which a hook reads."""

    def __init__(self, count: int, **options: Any) -> None:
        """Take the number of steps."""
        super().__init__(**{**options, "autocast": False})
        self.count = count
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        self.factors = self.add_weight([self.count], "ones", "float32", name="factors", autocast=False)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return what `call` returns, without running it."""
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "count": self.count}
        config.pop("autocast", None)
        return config
