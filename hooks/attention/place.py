"""Where the gate is inserted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from hookline.hooks.graphs import select_layer
from hookline.hooks.quantization.selection import DROPOUTS, SHAPERS, SIGN_KEEPING
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph, is_of, layer_output, nodes_in_order

CONVOLUTIONS = ("Conv2D", "DepthwiseConv2D", "SeparableConv2D", "Conv2DTranspose")


@dataclass(frozen=True)
class Place:
    """Locate a feature map in a model's graph."""

    model: keras.Model  # functional, with the layers of the given model
    layer: str  # name of the layer (or other operation) that outputs the map
    features: Any  # the map, a Keras tensor [batch, height, width, channels]


def find_place(model: keras.Model, pattern: str | None) -> Place:
    """Return the map to gate: the output of the layer that matches, or the input of the second convolution."""
    if not is_graph(model):
        raise UserError(f"The graph of '{model.name}' is not known. Expected a functional or Sequential model.")
    functional = as_functional(model)
    if pattern is None:
        place = _automatic(functional)
    else:
        layer = select_layer(model, pattern)
        place = Place(functional, layer.name, layer_output(functional, layer))
    _check(place)
    return place


def _automatic(model: keras.Model) -> Place:
    """Return the first map between two convolutions, or else the last one after a convolution."""
    behind: dict[int, Place] = {}  # maps that a convolution reaches through maps only
    for node in nodes_in_order(model):
        given = [behind[id(tensor)] for tensor in node.input_tensors if id(tensor) in behind]
        inner = node.operation._flatten_layers() if isinstance(node.operation, keras.Layer) else ()
        is_convolution = any(is_of(layer, CONVOLUTIONS) for layer in inner)
        if is_convolution and given:
            return given[0]
        for tensor in node.output_tensors:
            if (given or is_convolution) and len(tensor.shape) == 4:
                behind[id(tensor)] = Place(model, str(node.operation.name), tensor)
    if behind:
        return list(behind.values())[-1]
    raise UserError(
        f"No 2-D convolution in the graph of '{model.name}' itself returns a map [batch, height, width, channels]. "
        "Expected one, or an inner model that returns its maps (of keras.applications: include_top=False, "
        "pooling=None), or layer=<pattern> of a layer with a map."
    )


def _check(place: Place) -> None:
    shape = tuple(place.features.shape)
    if len(shape) != 4 or shape[-1] is None or "float" not in str(place.features.dtype):
        raise UserError(
            f"The layer '{place.layer}' returns {place.features.dtype} of shape {list(shape)}. Expected a map [batch, "
            "height, width, channels]: set layer=<pattern>."
        )
    if any(each is place.features for each in place.model.outputs):
        raise UserError(f"'{place.layer}' is an output of the model. Expected a layer before it: set layer=<pattern>.")
    layers = place.model._flatten_layers()
    if any(getattr(layer, "data_format", None) == "channels_first" for layer in layers):
        raise UserError("The model has its channels first. Expected maps [batch, height, width, channels].")


ZERO_KEEPING = SIGN_KEEPING | SHAPERS | DROPOUTS | {"Activation", "ReLU", "LeakyReLU", "PReLU", "ELU"}


def refuse_sign_after(place: Place) -> None:
    """Raise a UserError if a gated map reaches a sign quantizer through operations that keep zeros."""
    from hookline.hooks.quantization.layers import InputQuantizer  # imported late: a Keras layer

    dropped = {id(place.features)}
    for node in nodes_in_order(place.model):
        if not any(id(tensor) in dropped for tensor in node.input_tensors):
            continue
        operation = node.operation
        if isinstance(operation, InputQuantizer) and operation.quantizer.is_sign:
            raise UserError(
                f"The gate after '{place.layer}' feeds the quantizer '{operation.name}', which turns dropped features "
                f"into sign(0) = +1, not 0. Expected layer={operation.name}, or one with a batch norm between."
            )
        if type(operation).__name__ in ZERO_KEEPING and not isinstance(operation, keras.Model):
            dropped |= {id(tensor) for tensor in node.output_tensors}


def insert_gated(place: Place, gated: Any, *, join: str, name: str) -> keras.Model:
    """Return the model in which everything after a map uses the gated map or, with "concatenate", both maps."""
    model, masked = place.model, _called_above(place, gated)
    plain = _called_above(place, place.features) if join == "concatenate" else {}

    def output(tensor: Any) -> Any:
        if id(tensor) not in plain:
            return masked.get(id(tensor), tensor)
        both = [masked[id(tensor)], plain[id(tensor)]]
        return keras.layers.Concatenate(axis=-1, name=f"{name}_{tensor.name}")(both)

    outputs = keras.tree.map_structure(output, model._outputs_struct)
    return keras.Model(model._inputs_struct, outputs, name=model.name)


def _called_above(place: Place, features: Any) -> dict[int, Any]:
    """Return other features and the recomputed tensors after them, by the `id` of the tensor that each replaces."""
    changed = {id(place.features): features}
    for node in nodes_in_order(place.model):
        if any(id(tensor) in changed for tensor in node.input_tensors):
            args, kwargs = node.arguments.fill_in(
                {id(each): changed.get(id(each), each) for each in node.input_tensors}
            )
            made = keras.tree.flatten(node.operation(*args, **kwargs))
            changed |= {id(old): new for old, new in zip(node.output_tensors, made, strict=True)}
    return changed
