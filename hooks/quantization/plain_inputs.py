"""Input quantizers written out in operations of Keras itself, for a model that loads where nothing but Keras is."""

from __future__ import annotations

from typing import Any

import keras

from hooks.quantization.graph_facts import as_functional, is_graph
from hooks.quantization.quantizers import Quantizer


def write_out_input_quantizers(model: keras.Model) -> keras.Model:
    """Return the model with `keras.ops` in place of every `InputQuantizer`: the same layers, the same variables.

    Its outputs are the same. Gradients do not go through the operations, so it serves inference alone.

    Args:
        model: functional, or Sequential and built; any other one has no input quantizer and is returned as it is.
    """
    from hooks.quantization.input_quantizer import InputQuantizer  # a class of Keras: not for a look at options

    if not is_graph(model) or not any(isinstance(each, InputQuantizer) for each in model._flatten_layers()):
        return model

    def clone(layer: Any) -> Any:
        return write_out_input_quantizers(layer) if is_graph(layer) else layer

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, InputQuantizer):
            return quantize(*args, **kwargs, quantizer=layer.quantizer)
        return layer(*args, **kwargs)

    return keras.models.clone_model(as_functional(model), clone_function=clone, call_function=call)


def quantize(inputs: Any, *, quantizer: Quantizer) -> Any:
    """Return what a quantizer makes of inputs, by operations of Keras. NaN stays NaN.

    Args:
        inputs: tensor, or Keras tensor of a graph, of any shape and float dtype.
        quantizer: for inputs.
    """
    ops = keras.ops
    wide = ops.cast(inputs, "float32")
    if quantizer.name == "dorefa":
        steps = float(2**quantizer.bits - 1)
        values = ops.round(ops.clip(wide, 0.0, 1.0) * steps) * (1.0 / steps)
    elif quantizer.name == "ste_tern":
        values = _ternary(wide, **quantizer.arguments)
    else:
        values = ops.where(ops.isnan(wide), wide, ops.where(wide >= 0.0, 1.0, -1.0))
    return ops.cast(values, inputs.dtype)


def _ternary(
    wide: Any, *, threshold: float = 0.05, ternary_weight_networks: bool = False, clip_value: float = 1.0
) -> Any:
    del clip_value  # of the gradient
    ops = keras.ops
    limit = 0.7 * ops.mean(ops.abs(wide)) if ternary_weight_networks else threshold
    return ops.where(ops.abs(wide) <= limit, 0.0, ops.sign(wide))
