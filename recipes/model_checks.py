"""Checks of any model against the data that it is given: a mismatch is reported in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph
from hookline.trainer.input.data import Data
from hookline.trainer.network import listed_shapes, shape_hint


def check_classes(data: Data, task: str) -> None:
    """Refuse data without classes for a task that needs the class of each example."""
    if not data.classes:
        raise UserError(
            f"task={task} needs a class for each example, and data '{data.name}' has no classes. Expected integer "
            "targets [examples], or task=supervised task.loss=mean_squared_error for numbers, binary_crossentropy for "
            "several labels or maps: see recipe=regression, multi_label and segmentation."
        )


def model_inputs(model: keras.Model) -> Any:
    """Return a model's inputs, a tensor or several in a dict or list, such as its call takes; None if unknown."""
    inputs = getattr(as_functional(model), "_inputs_struct", None) if is_graph(model) else None
    return inputs if all(isinstance(each, keras.KerasTensor) for each in inputs_by_name(inputs).values()) else None


def inputs_by_name(inputs: Any) -> dict[str, Any]:
    """Return what `model_inputs` returned by name."""
    if isinstance(inputs, Mapping):
        return {str(name): each for name, each in inputs.items()}
    several = inputs if isinstance(inputs, list | tuple) else [] if inputs is None else [inputs]
    return {getattr(each, "name", ""): each for each in several}


def check_inputs(model: keras.Model, data: Data) -> None:
    """Refuse a model that does not take the examples of the data."""
    if not is_graph(model):
        return
    if data.preparations:
        several = {name: list(each.shape[1:]) for name, each in inputs_by_name(model_inputs(model)).items()}
        wanted = data.model_shape
        if several.keys() != wanted.keys() or not all(fits_shape(several[name], wanted[name]) for name in wanted):
            first = next(iter(wanted))
            raise UserError(
                f"The model '{model.name}' takes the inputs {listed_shapes(several)}. Expected those of the data by "
                f"their names, such as keras.Input(input_shape['{first}'], name='{first}'): {listed_shapes(wanted)}."
            )
        return
    taken = [list(each.shape[1:]) for each in model.inputs]
    if len(taken) != 1 or not fits_shape(taken[0], data.input_shape):
        hint = shape_hint(data) if data.preparation and fits_shape(taken[0], data.preparation.raw_shape) else ""
        raise UserError(
            f"The model '{model.name}' takes inputs of shape {' and '.join(map(str, taken))}. Expected "
            f"{list(data.input_shape)}, as the data gives: let the model begin with keras.Input(input_shape), or take "
            f"other data.{hint}"
        )


def check_one_output(model: keras.Model, expected: str, each: tuple[int, ...] | None = None) -> None:
    """Refuse a model that returns several tensors, one in a list or under a name, or one of another shape."""
    outputs = getattr(model, "_outputs_struct", None)  # of a functional model, as its call returns them
    if isinstance(outputs, dict | list):
        raise several_outputs(model.name, outputs, expected)
    shape = getattr(model, "output_shape", None)
    if each is not None and isinstance(shape, tuple) and shape[1:] != each:
        raise UserError(f"The network '{model.name}' returns {shape}. Expected {expected}, by a last Dense layer.")


def several_outputs(model: str, outputs: Any, expected: str) -> UserError:
    """Return the error for a model that returns anything but one tensor."""
    items = outputs.items() if isinstance(outputs, dict) else enumerate(outputs)
    listed = ", ".join(f"{key}: {list(each.shape)}" for key, each in items)
    return UserError(
        f"The model '{model}' returns a {type(outputs).__name__} ({listed}). Expected one tensor, {expected}: return "
        "that output alone, or take another network, such as model=plain_cnn or model=mlp."
    )


def fits_shape(taken: Sequence[int | None], given: Sequence[int]) -> bool:
    """Return whether a shape is one that is taken, where None stands for any length."""
    return len(taken) == len(given) and all(one in (None, other) for one, other in zip(taken, given, strict=True))
