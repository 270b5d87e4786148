"""The layer that turns the logits of a branch into an attention map."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="hookline")
class AttentionMap(keras.layers.Layer):
    """Return A = sigmoid(logits / temperature), in float32 unless another dtype is given.

    bfloat16 would round all of A above 0.998 to exactly 1.
    """

    def __init__(self, *, temperature: float = 1.0, **options: Any) -> None:
        """Set the temperature.

        Args:
            temperature: above 0; a high one makes A soft, a low one decided.
            **options: those of every Keras layer, such as name and dtype.
        """
        super().__init__(**{"dtype": "float32", **options})
        self.temperature = temperature

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(inputs / self.temperature)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "temperature": self.temperature}
