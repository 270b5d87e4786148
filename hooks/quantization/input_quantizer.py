"""The layer that quantizes the next layer's input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.quantization.quantizers import Quantizer, parse_quantizer


@keras.saving.register_keras_serializable(package="hookline")
class InputQuantizer(keras.layers.Layer):
    """Quantize its input; it has no variables, and is the same in training and in evaluation.

    A kernel layer that pads with "same" adds zeros to the quantized map, a third value beside -1 and +1. A
    `ZeroPadding` layer stands before the quantizer instead, so that its zeros become sign(0) = +1.
    """

    def __init__(self, quantizer: str | Mapping[str, Any], **options: Any) -> None:
        """Take a quantizer."""
        super().__init__(**options)
        parsed = parse_quantizer(quantizer, role="input", option="quantizer")
        if parsed is None:
            raise ValueError("Expected a quantizer. Received: None.")
        self.quantizer: Quantizer = parsed
        self.supports_masking = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.quantizer(inputs)

    def inference_op(self) -> dict[str, Any] | None:
        """Return what it computes, for packed files: see `hookline.deploy.keras_graph`."""
        return self.quantizer.inference_op

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "quantizer": self.quantizer.config}
