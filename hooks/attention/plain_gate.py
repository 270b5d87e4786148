"""Attention written out in layers and operations of Keras itself, for a model that loads where nothing but Keras is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from hooks.attention.area_resize import AreaResize, area_weights
from hooks.attention.attention_map import AttentionMap
from hooks.attention.dilated_conv import DilatedConv2D
from hooks.attention.gate import BernoulliGate
from trainer.graph import as_functional, is_graph

OWN = (AreaResize, AttentionMap, BernoulliGate, DilatedConv2D)


def write_out_attention(model: keras.Model) -> keras.Model:
    """Return the model with parts of Keras in the place of attention's own layers: the same variables.

    Its outputs are those of evaluation, to within rounding. Nothing is drawn, so it serves inference alone.

    Args:
        model: functional, or Sequential and built, with no gate that draws in evaluation; any other one has no
            attention and is returned as it is.
    """
    if not is_graph(model) or not any(isinstance(each, OWN) for each in model._flatten_layers()):
        return model

    convolutions: dict[int, keras.layers.Conv2D] = {}

    def clone(layer: Any) -> Any:
        return write_out_attention(layer) if is_graph(layer) else layer

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, DilatedConv2D):
            layer = convolutions.setdefault(id(layer), plain_convolution(layer))
        write_out = next((made for kind, made in WRITTEN_OUT.items() if isinstance(layer, kind)), None)
        if write_out is None:
            return layer(*args, **kwargs)
        inputs = args[0] if args else kwargs["inputs"]
        return write_out(layer, inputs)

    return keras.models.clone_model(as_functional(model), clone_function=clone, call_function=call)


def plain_convolution(layer: DilatedConv2D) -> keras.layers.Conv2D:
    """Return the layer of Keras that convolves alike, with the very variables.

    Args:
        layer: built.
    """
    plain = keras.layers.Conv2D.from_config(layer.get_config())
    plain._kernel, plain.bias = layer._kernel, layer.bias
    plain.input_spec, plain.built = layer.input_spec, True
    return plain


def resize(layer: AreaResize, maps: Any) -> Any:
    """Return maps [batch, height, width, channels] resized by area: two products with constant matrices.

    Args:
        layer: says to which size.
        maps: Keras tensor of a known size.
    """
    ops = keras.ops
    _, height, width, channels = maps.shape
    rows, columns = (
        area_weights(given, wanted).astype(np.float32)
        for given, wanted in ((height, layer.height), (width, layer.width))
    )
    lines = ops.matmul(rows, ops.reshape(maps, (-1, height, width * channels)))
    cells = ops.matmul(columns, ops.reshape(lines, (-1, width, channels)))
    return ops.reshape(cells, (-1, layer.height, layer.width, channels))


def attention(layer: AttentionMap, logits: Any) -> Any:
    """Return A = sigmoid(logits / temperature) in float32.

    Args:
        layer: says at which temperature.
        logits: Keras tensor.
    """
    return keras.ops.sigmoid(keras.ops.cast(logits, "float32") / layer.temperature)


def gate(layer: BernoulliGate, inputs: list[Any]) -> list[Any]:
    """Return what the gate returns in evaluation: features times mask, and the mask.

    Args:
        layer: draws nothing in evaluation.
        inputs: features [batch, height, width, channels] and A [batch, height, width, 1].
    """
    features, mask = inputs
    if layer.mode == "bernoulli" and layer.eval_mode == "threshold":
        mask = keras.ops.cast(mask >= 0.5, "float32")
    # A layer, not an operation: in a copy in float32 it computes in that, whatever it computes in here.
    half = features.dtype if features.dtype in ("float16", "bfloat16") else None
    multiply = keras.layers.Multiply(name=layer.name, dtype=f"mixed_{half}" if half else features.dtype)
    return [multiply([features, mask]), mask]


WRITTEN_OUT: Mapping[type[keras.Layer], Callable[[Any, Any], Any]] = {
    AreaResize: resize,
    AttentionMap: attention,
    BernoulliGate: gate,
}
