"""Input quantizers: which layers need one, put into a model, and written out for a model that ships."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from hookline.hooks.graphs import call_anew
from hookline.hooks.quantization.quantizers import Quantizer
from hookline.hooks.quantization.selection import Selection
from hookline.trainer.errors import UserError


def layers_to_precede(selection: Selection, quantizer: Quantizer, *, first_too: bool) -> dict[str, keras.Layer]:
    """Return the selected layers that need an input quantizer: those without an equal one; refuse a useless one."""
    inputs = selection.inputs
    if inputs is None:
        raise UserError("A subclassed model has no graph. Expected a functional one, or input_quantizer=null.")
    wanted = {path: layer for path, layer in selection.layers.items() if first_too or path not in selection.first}
    missing = {}
    for path, layer in wanted.items():
        calls = inputs.calls.get(path, [])
        if path in inputs.hidden or not calls:
            raise UserError(
                f"No input quantizer can be put before '{path}', inside a layer that is not a functional model. Set "
                "input_quantizer=null, or leave it out of `layers`."
            )
        present = [each.quantizer for each in calls if each.quantizer is not None]
        if any(config != quantizer.config for config in present):
            raise UserError(
                f"The input of '{path}' is quantized by {present[0]} and by {quantizer.config}. Expected one hook."
            )
        if len(present) == len(calls):
            continue
        cause = next((each.non_negative for each in calls if each.non_negative), "")
        if cause and quantizer.is_sign:
            raise UserError(
                f"The input of layer '{path}' is never negative, because of '{cause}': its sign is always +1. Replace "
                "that activation (model.activation=hard_tanh), or set input_quantizer to null or {name: dorefa, k_bit: "
                "2}."
            )
        missing[path] = layer
    return missing


def dropout_advice(selection: Selection, paths: Iterable[str], quantizer: Quantizer) -> list[str]:
    """Return a line for each dropout whose zeros a sign turns into +1."""
    if not quantizer.is_sign or selection.inputs is None:
        return []
    fed = {facts.dropout: path for path in paths for facts in selection.inputs.calls[path] if facts.dropout}
    return [
        f"the dropout layer '{dropout}' feeds {quantizer.name} before layer '{path}': what it drops becomes sign(0) = "
        "+1, not 0. Put it before the batch norm, or leave it out."
        for dropout, path in fed.items()
    ]


def insert_input_quantizers(model: keras.Model, layers: Mapping[str, keras.Layer], quantizer: Quantizer) -> keras.Model:
    """Return the model with an `InputQuantizer` before each of the layers: the same layers, the same variables."""
    from hookline.hooks.quantization.layers import InputQuantizer  # a class of Keras: not for options

    before = {
        id(layer): InputQuantizer(quantizer.config, name=f"{layer.name}_input_quantizer", dtype=layer.dtype_policy)
        for layer in layers.values()
    }

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        inputs, *others = args or (kwargs.pop("inputs"),)
        return layer(before[id(layer)](inputs), *others, **kwargs)

    return call_anew(model, lambda layer: id(layer) in before, call)


def quantize(inputs: Any, *, quantizer: Quantizer) -> Any:
    """Return quantized inputs, computed by operations of Keras; NaN stays NaN."""
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
