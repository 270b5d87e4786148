"""A gated map put in the place of a map of a functional model: the same layers, the same variables above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from hooks.attention.place import Place, nodes_in_order


@dataclass(frozen=True)
class Both:
    """Stand for a tensor in two forms on the way up from a gate.

    Attributes:
        masked: as it follows from the gated map.
        plain: as it follows from the map itself.
    """

    masked: Any
    plain: Any


def insert_gated(place: Place, gated: Any, *, join: str, name: str) -> keras.Model:
    """Return the model in which everything above a map sees the gated map.

    Args:
        place: the map.
        gated: Keras tensor of the map's shape that depends on the model's inputs alone.
        join: "replace"; or "concatenate", to run what is above on the gated map and on the map itself, with the same
            variables, and to concatenate the two forms of each output on the last axis: masked first, then plain.
        name: that the names of concatenations begin with.
    """
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
    """Return what an operation makes of its arguments: in both forms where one of them has two."""
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
