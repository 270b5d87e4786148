"""Checks of the inputs and class weights that `fit`, `evaluate` and `predict` take; errors are one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import keras

from hookline.recipes.model_checks import alike, batched, inputs_by_name, model_inputs
from hookline.trainer.config.schema import BALANCED
from hookline.trainer.errors import UserError, is_whole_number
from hookline.trainer.input.data import Data
from hookline.trainer.network import listed_shapes


def embedded_inputs(model: keras.Model) -> dict[str, int]:
    """Return the smallest `input_dim` of the `Embedding` layers that read an input, for each such input by name."""
    found: dict[str, int] = {}
    named = inputs_by_name(model_inputs(model))
    for layer in model.layers if named else ():
        read = [each for node in layer._inbound_nodes for each in node.input_tensors]
        for name, tensor in named.items():
            if isinstance(layer, keras.layers.Embedding) and any(each is tensor for each in read):
                found[name] = min(layer.input_dim, found.get(name, layer.input_dim))
    return found


def check_inputs(inputs: Any, taken: Any, rows: Mapping[str, int], name: str) -> None:
    """Refuse inputs that differ from those of `model_inputs`, and indices out of the range of an embedding."""
    wanted = {key: tuple(each.shape[1:]) for key, each in inputs_by_name(taken).items()}
    given: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        given = {str(key): each for key, each in inputs.items()}
        found = f"the inputs {listed_shapes({key: each.shape for key, each in given.items()})}"
    else:
        arrays = inputs if isinstance(inputs, list | tuple) else [inputs]
        found = f"the shape {' and '.join(str(list(each.shape)) for each in arrays)}"
        if len(arrays) == len(wanted) and (len(wanted) == 1 or not isinstance(taken, Mapping)):
            given = dict(zip(wanted, arrays, strict=True))
    more = [key for key in given if key not in wanted] if isinstance(taken, Mapping) else []  # would shift others
    if more or not all(key in given and alike(wanted[key], given[key].shape[1:]) for key in wanted):
        shapes = {key: batched(shape) for key, shape in wanted.items()}
        one = len(shapes) == 1 and not isinstance(inputs, Mapping)
        expected = "".join(shapes.values()) if one else ", ".join(f"{key} {each}" for key, each in shapes.items())
        how = " in a dict" if isinstance(taken, Mapping) else ""
        how += f" without {' and '.join(map(repr, more))}" if more else ""
        raise UserError(f"{name} has {found}. Expected {expected}{how}, as the model takes.")
    for key, size in rows.items():
        low, high = given[key].min(), given[key].max()
        if high >= size or low < -size:
            where = name if len(wanted) == 1 else f"{name}['{key}']"
            raise UserError(
                f"{where} has values within {low:g}..{high:g}. Expected 0..{size - 1}, the rows of its Embedding."
            )


def class_weights_of(given: Any, data: Data) -> str | dict[int, float] | None:
    """Return the class weights in the form of `trainer.class_weights`."""
    if given is None or (isinstance(given, Mapping) and not given):
        return None
    if not data.classes:
        raise UserError(
            "class_weight received for targets that are not one class per example. Expected classes of an integer "
            "dtype (y.astype(int)), none of them ignored; or sample_weight=, how much each example counts, or "
            "loss_weights= for several outputs."
        )
    if isinstance(given, str) and given == BALANCED:
        return BALANCED
    if not isinstance(given, Mapping) or not all(_is_weight(*each, data.classes) for each in given.items()):
        raise UserError(
            f"class_weight={given!r} received. Expected '{BALANCED}', or finite weights of at least 0 by class, of "
            f"0..{data.classes - 1}, such as {{0: 2.0}}."
        )
    return {int(label): float(weight) for label, weight in given.items()}


def _is_weight(label: Any, weight: Any, classes: int) -> bool:
    known = is_whole_number(label) and 0 <= label < classes
    return known and isinstance(weight, Real) and 0 <= float(weight) < math.inf
