"""The layers that hooks insert to quantize: of inputs of layers, of activations, and of learned steps."""

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

    A kernel layer that pads with "same" adds zeros to the quantized map, a third value beside -1 and +1. A
    `ZeroPadding` layer stands before the quantizer instead, so that its zeros become sign(0) = +1.
    """

    role = "input quantizer"  # by which readers of a graph know it without importing it

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
        """Return what it computes, for packed files: see `hookline.deploy.keras_graph`."""
        return self.quantizer.inference_op

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "quantizer": self.quantizer.config}


def quantize(inputs: Any, *, quantizer: Quantizer) -> Any:
    """Return quantized inputs, computed by operations of Keras; NaN stays NaN."""
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
    """Return a tensor of the dtype of the input, which is not cast."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "autocast": False})
        self.supports_masking = True

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return {key: value for key, value in super().get_config().items() if key != "autocast"}


@keras.saving.register_keras_serializable(package="hookline")
class ActivationQuantizer(_Float):
    """Return its input, rounded to the range of a point where a hook is at work; it has no variables."""

    role = "activation quantizer"

    def __init__(self, point: int, observes: bool = True, averages: bool = False, **options: Any) -> None:
        """Say whose range counts, whether inputs move it, and whether they are means of its levels."""
        super().__init__(**options)
        self.point, self.observes, self.averages = point, observes, averages
        self.now, self.after = Pass(), ""  # after: the operation whose output it rounds

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.now(self, inputs)

    def get_config(self) -> dict[str, Any]:
        own = {"point": self.point, "observes": self.observes, "averages": self.averages}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="hookline")
class StepSizes(_Float):
    """Return its input; hold a factor for each step size, 1 at first, which a hook reads."""

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
