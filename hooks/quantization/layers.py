"""Layers that hooks insert to quantize: quantizers of layer inputs and of activations, and learned step sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.quantization.activation_places import Pass
from hookline.hooks.quantization.quantizers import Quantizer, parse_quantizer


@keras.saving.register_keras_serializable(package="hookline")
class InputQuantizer(keras.layers.Layer):
    """Quantize the input of the next layer, in training and in evaluation; it has no variables.

    A kernel layer with padding="same" adds zeros to the quantized map, a third value besides -1 and +1. The zeros of a
    `ZeroPadding` layer before the quantizer become sign(0) = +1 instead.
    """

    role = "input quantizer"  # identifies the layer in a graph without importing this module

    def __init__(self, quantizer: str | Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options)
        parsed = parse_quantizer(quantizer, role="input", option="quantizer")
        assert parsed is not None, "a quantizer is expected"
        self.quantizer: Quantizer = parsed
        self.supports_masking = True

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.quantizer(inputs)

    def written_out(self, inputs: Any) -> Any:
        return quantize(inputs, quantizer=self.quantizer)

    def inference_op(self) -> dict[str, Any] | None:
        """Return its computation as an op for packed files: see `hookline.deploy.keras_graph`."""
        return self.quantizer.inference_op

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "quantizer": self.quantizer.config}


def quantize(inputs: Any, *, quantizer: Quantizer) -> Any:
    """Return quantized inputs, computed with Keras operations; NaN stays NaN."""
    ops = keras.ops
    wide = ops.cast(inputs, "float32")
    if quantizer.name == "dorefa":
        steps = float(2**quantizer.bits - 1)
        values = ops.round(ops.clip(wide, 0.0, 1.0) * steps) * (1.0 / steps)
    elif quantizer.name == "ste_tern":
        given = {"threshold": 0.05, "ternary_weight_networks": False, **quantizer.arguments}
        limit = 0.7 * ops.mean(ops.abs(wide)) if given["ternary_weight_networks"] else given["threshold"]
        values = ops.where(ops.abs(wide) <= limit, 0.0, ops.sign(wide))
    else:
        values = ops.where(ops.isnan(wide), wide, ops.where(wide >= 0.0, 1.0, -1.0))
    return ops.cast(values, inputs.dtype)


class _Float(keras.layers.Layer):
    """Return a tensor with the dtype of the input, without autocasting the input."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "autocast": False})
        self.supports_masking = True

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return {key: value for key, value in super().get_config().items() if key != "autocast"}


@keras.saving.register_keras_serializable(package="hookline")
class ActivationQuantizer(_Float):
    """Round the input to the range of a point while a hook is active, otherwise return it; there are no variables."""

    role = "activation quantizer"

    def __init__(self, point: int, observes: bool = True, averages: bool = False, **options: Any) -> None:
        """Set the point with the range, whether inputs update the range, and whether they are means of its levels."""
        super().__init__(**options)
        self.point, self.observes, self.averages = point, observes, averages
        self.now, self.after = Pass(), ""  # after: name of the operation or input that it rounds

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.now(self, inputs)

    def get_config(self) -> dict[str, Any]:
        own = {"point": self.point, "observes": self.observes, "averages": self.averages}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="hookline")
class StepSizes(_Float):
    """Return the input; hold a trainable factor for each step size, initially 1, for a hook to read."""

    role = "step sizes"

    def __init__(self, count: int, **options: Any) -> None:
        super().__init__(**options)
        self.count = count

    def build(self, input_shape: Any) -> None:
        self.factors = self.add_weight([self.count], "ones", "float32", name="factors", autocast=False)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "count": self.count}
