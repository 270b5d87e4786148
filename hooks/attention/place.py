"""Where the gate is put."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from hookline.hooks.quantization.selection import DROPOUTS, SHAPERS, SIGN_KEEPING
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph, is_of, layer_output
from hookline.trainer.select import layer_paths, select_layers

CONVOLUTIONS = ("Conv2D", "DepthwiseConv2D", "SeparableConv2D", "Conv2DTranspose")


@dataclass(frozen=True)
class Place:
    """Name a map in a model's graph."""

    model: keras.Model  # functional, with the layers of the model that was given
    layer: str  # name of the layer (or other operation) that the map comes out of
    features: Any  # the map, a Keras tensor [batch, height, width, channels]


def find_place(model: keras.Model, pattern: str | None) -> Place:
    """Return the map to gate."""
    if not is_graph(model):
        raise UserError(
            f"The model '{model.name}' is a {type(model).__name__}, whose graph is not known: no gate can be put into "
            "it. Expected a functional or Sequential model."
        )
    functional = as_functional(model)
    if pattern is None:
        place = _automatic(functional)
    else:
        layer = _matching(model, pattern)
        place = Place(functional, layer.name, layer_output(functional, layer))
    _check(place)
    return place


def nodes_in_order(model: keras.Model) -> Iterator[Any]:
    """Yield the nodes of a functional model's own graph, each after those that it takes from; inputs are left out."""
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            if not node.is_input:
                yield node


def outputs_in(model: keras.Model, layer: keras.layers.Layer) -> list[Any]:
    """Return the tensors that come out of a layer in a model's own graph."""
    (node,) = (node for node in nodes_in_order(model) if node.operation is layer)
    return list(node.output_tensors)


def _matching(model: keras.Model, pattern: str) -> keras.layers.Layer:
    found = select_layers(model, pattern, kind="layer")
    if len(found) != 1:
        raise UserError(
            f"layer={pattern} matches {len(found)} layers: {', '.join(list(found)[:10])}. Expected a pattern that "
            "matches one."
        )
    (path,) = found
    holders = [path.rsplit("/", count)[0] for count in range(path.count("/"), 0, -1)]
    if holders and holders[0] in layer_paths(model):
        raise UserError(
            f"The layer '{path}' is inside '{holders[0]}'. Expected a layer of the network's own graph, such as "
            f"layer={holders[0]}, or a network without that inner model."
        )
    return found[path]


def _automatic(model: keras.Model) -> Place:
    behind: set[int] = set()  # maps that come from a convolution, with nothing but maps in between
    last: tuple[Any, Any] | None = None
    for node in nodes_in_order(model):
        given = [tensor for tensor in node.input_tensors if id(tensor) in behind]
        is_convolution = bool(_convolutions(node.operation))
        if is_convolution and given:
            return Place(model, _source(model, given[0]), given[0])
        for tensor in node.output_tensors:
            if (given or is_convolution) and len(tensor.shape) == 4:
                behind.add(id(tensor))
                last = (node.operation, tensor)
    if last is None:
        holders = [node.operation for node in nodes_in_order(model) if _convolutions(node.operation)]
        if holders:
            raise UserError(
                f"The 2-D convolutions of '{model.name}' are inside '{holders[0].name}', which returns no map [batch, "
                "height, width, channels], and a gate goes into the network's own graph. Expected an inner model that "
                "returns its maps (of keras.applications: include_top=False, pooling=None), or layer=<pattern> of a "
                "layer with such a map."
            )
        raise UserError(
            f"The model '{model.name}' has no 2-D convolution, so there is no map [batch, height, width, channels] to "
            "gate. Expected a convolutional network, or layer=<pattern> of a layer with such a map."
        )
    return Place(model, last[0].name, last[1])


def _convolutions(operation: Any) -> list[keras.Layer]:
    """Return the 2-D convolutions that an operation is or holds."""
    inner = operation._flatten_layers() if isinstance(operation, keras.Layer) else ()
    return [layer for layer in inner if is_of(layer, CONVOLUTIONS)]


def _source(model: keras.Model, tensor: Any) -> str:
    for node in nodes_in_order(model):
        if any(each is tensor for each in node.output_tensors):
            return str(node.operation.name)
    raise AssertionError("a tensor of a graph comes out of one of its nodes")


def _check(place: Place) -> None:
    shape = tuple(place.features.shape)
    if len(shape) != 4 or shape[-1] is None or "float" not in str(place.features.dtype):
        raise UserError(
            f"The layer '{place.layer}' returns {place.features.dtype} of shape {list(shape)}. Expected a map [batch, "
            "height, width, channels]: choose another layer by layer=<pattern>."
        )
    if any(each is place.features for each in place.model.outputs):
        raise UserError(
            f"The layer '{place.layer}' gives an output of the model: nothing would see the gated map. Expected a "
            "layer before it: choose one by layer=<pattern>."
        )
    if keras.config.image_data_format() != "channels_last" or _channels_first(place.model):
        raise UserError("The model has its channels first. Expected maps [batch, height, width, channels].")


def _channels_first(model: keras.Model) -> bool:
    return any(getattr(layer, "data_format", None) == "channels_first" for layer in model._flatten_layers())


ZERO_KEEPING = SIGN_KEEPING | SHAPERS | DROPOUTS | {"Activation", "ReLU", "LeakyReLU", "PReLU", "ELU"}


def refuse_sign_after(place: Place) -> None:
    """Refuse to gate a map that reaches a sign with nothing in between that could move a zero."""
    from hookline.hooks.quantization.input_quantizer import InputQuantizer  # a class of Keras: not for options

    dropped = {id(place.features)}
    for node in nodes_in_order(place.model):
        if not any(id(tensor) in dropped for tensor in node.input_tensors):
            continue
        operation = node.operation
        if isinstance(operation, InputQuantizer) and operation.quantizer.is_sign:
            raise UserError(
                f"The gate after '{place.layer}' stands before the quantizer '{operation.name}', for which a dropped "
                f"feature is sign(0) = +1 and not 0. Expected layer={operation.name}, or one with a batch norm between."
            )
        if type(operation).__name__ in ZERO_KEEPING and not isinstance(operation, keras.Model):
            dropped |= {id(tensor) for tensor in node.output_tensors}


@dataclass(frozen=True)
class Both:
    """Represent a tensor in two forms on the way up from a gate."""

    masked: Any  # as it follows from the gated map
    plain: Any  # as it follows from the map itself


def insert_gated(place: Place, gated: Any, *, join: str, name: str) -> keras.Model:
    """Return the model in which everything above a map sees the gated map."""
    model = place.model
    changed: dict[int, Any] = {id(place.features): gated if join == "replace" else Both(gated, place.features)}
    for node in nodes_in_order(model):
        if not any(id(tensor) in changed for tensor in node.input_tensors):
            continue  # below the gate or beside it: the tensors stay as they are
        given = {id(tensor): changed.get(id(tensor), tensor) for tensor in node.input_tensors}
        outputs = _call(node.operation, *node.arguments.fill_in(given))
        changed |= {id(old): new for old, new in zip(node.output_tensors, keras.tree.flatten(outputs), strict=True)}
    outputs = [_joined(changed.get(id(tensor), tensor), f"{name}_{tensor.name}") for tensor in model.outputs]
    return keras.Model(
        model._inputs_struct, keras.tree.pack_sequence_as(model._outputs_struct, outputs), name=model.name
    )


def _call(operation: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operation: in both forms if one of its arguments has two."""
    if not any(isinstance(each, Both) for each in keras.tree.flatten((args, kwargs))):
        return operation(*args, **kwargs)
    forms = []
    for form in ("masked", "plain"):
        chosen_args, chosen_kwargs = keras.tree.map_structure(
            lambda each, form=form: getattr(each, form) if isinstance(each, Both) else each, (args, kwargs)
        )
        forms.append(keras.tree.flatten(operation(*chosen_args, **chosen_kwargs)))
    return [Both(masked, plain) for masked, plain in zip(*forms, strict=True)]


def _joined(output: Any, name: str) -> Any:
    if not isinstance(output, Both):
        return output
    return keras.layers.Concatenate(axis=-1, name=name)([output.masked, output.plain])
