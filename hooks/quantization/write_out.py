"""Quantizers written out as operations of Keras, for models that ship."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hookline.hooks.rebuild import call_anew
from hookline.trainer.ops.averages import STRETCH, STRETCHED, middle


def write_out_quantizers(model: keras.Model, ranges: np.ndarray | None, bits: int) -> keras.Model:
    """Return the model with Keras's fake quantization of constant ranges in place of activation quantizers.

    Args:
        model: functional; other models are returned as they are.
        ranges: float32 [points, 2]; None for no quantization.
        bits: of activations.
    """
    from hookline.hooks.quantization.activation_quantizer import ActivationQuantizer, StepSizes

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(layer, (ActivationQuantizer, StepSizes)):
            return layer(*args, **kwargs)
        inputs = args[0] if args else kwargs["inputs"]
        if ranges is None or isinstance(layer, StepSizes) or layer.point.left_out:
            return inputs
        limits = ranges[layer.point.index]
        if layer.point.averages:
            inputs = stretched(inputs, limits, bits, layer.name)
        return _fake_quantized(inputs, limits, bits)

    return call_anew(model, lambda layer: isinstance(layer, (ActivationQuantizer, StepSizes)), call)


def stretched(inputs: Any, limits: np.ndarray, bits: int, name: str) -> Any:
    """Return means stretched as `quantize_averages` does, by a layer of Keras."""
    low, high = limits.tolist()
    options = {"scale": 1.0 + STRETCH, "offset": -STRETCH * middle(low, high, bits)}
    return keras.layers.Rescaling(**options, name=f"{name}{STRETCHED}")(inputs)


def _fake_quantized(inputs: Any, limits: np.ndarray, bits: int) -> Any:
    """Return inputs rounded by an operation of Keras; its function forgets the bits of a Keras tensor."""
    from keras.src.quantizers.quantizers import FakeQuantWithMinMaxVars

    low, high = limits.tolist()
    return FakeQuantWithMinMaxVars(num_bits=bits)(inputs, low, high)
