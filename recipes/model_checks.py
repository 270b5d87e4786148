"""Checks of a model and its losses against the data; a mismatch is reported in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from hookline.recipes.losses import BINARY, ONE, ONE_HOT, SPARSE, Loss
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph
from hookline.trainer.input.data import Data
from hookline.trainer.network import listed_shapes, shape_hint

Shape = tuple[int | None, ...]


def check_classes(data: Data, task: str) -> None:
    """Refuse data without classes for a task that needs the class of each example."""
    if not data.classes:
        raise UserError(
            f"task={task} needs a class for each example, and data '{data.name}' has no classes. Expected integer "
            "targets [examples], or task=supervised task.loss=mean_squared_error for numbers, binary_crossentropy for "
            "several labels or maps: see recipe=regression, multi_label and segmentation."
        )


def model_inputs(model: keras.Model) -> Any:
    """Return a model's inputs in the structure that its call takes: a tensor, dict or list; None if unknown."""
    inputs = getattr(as_functional(model), "_inputs_struct", None) if is_graph(model) else None
    return inputs if all(isinstance(each, keras.KerasTensor) for each in inputs_by_name(inputs).values()) else None


def inputs_by_name(inputs: Any) -> dict[str, Any]:
    """Return the result of `model_inputs` as a dict by name."""
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
    """Refuse a model that returns several tensors, one in a list or dict, or one of another shape."""
    outputs = getattr(model, "_outputs_struct", None)  # of a functional model, as its call returns them
    if isinstance(outputs, dict | list):
        raise several_outputs(model.name, outputs, expected)
    shape = getattr(model, "output_shape", None)
    if each is not None and isinstance(shape, tuple) and shape[1:] != each:
        raise UserError(f"The network '{model.name}' returns {shape}. Expected {expected}, from a final Dense layer.")


def several_outputs(model: str, outputs: Any, expected: str) -> UserError:
    """Return the error for a model that returns anything but one tensor."""
    items = outputs.items() if isinstance(outputs, dict) else enumerate(outputs)
    listed = ", ".join(f"{key}: {list(each.shape)}" for key, each in items)
    return UserError(
        f"The model '{model}' returns a {type(outputs).__name__} ({listed}). Expected one tensor, {expected}: return "
        "that output alone, or take another network, such as model=plain_cnn or model=mlp."
    )


def check_targets(targets: Any, losses: Mapping[str, Loss], shapes: Mapping[str, Shape], name: str) -> None:
    """Refuse targets that a cross-entropy would misread; `shapes` are those of the outputs, batch axis first."""
    for output, loss in losses.items():
        own = targets.get(output) if isinstance(targets, Mapping) else targets if output == ONE else None
        where = f"{name}['{output}']" if output else name
        if own is not None and loss.kind == BINARY:
            _check_shares(own, where)
        elif own is not None and loss.kind == SPARSE:
            _check_labels(own, shapes.get(output, ()), getattr(loss.function, "ignore_class", None), where)


def _check_shares(targets: np.ndarray, where: str) -> None:
    bad = (targets < 0) | (targets > 1)
    if bad.any():
        raise UserError(
            f"{where}: {bad.sum()} values lie outside 0..1, the first is {targets[bad][0]:g} in row "
            f"{np.argwhere(bad)[0][0]}. Expected 0 and 1, or probabilities, for loss={BINARY}; for other numbers "
            "loss=mean_squared_error."
        )


def _check_labels(targets: np.ndarray, shape: Shape, ignored: int | None, where: str) -> None:
    """Refuse labels that are not class numbers; `shape` is that of the output, () if unknown."""
    part = targets != np.floor(targets)
    if part.any():
        raise UserError(
            f"{where}: {part.sum()} labels are not whole numbers, the first is {targets[part][0]:g} in row "
            f"{np.argwhere(part)[0][0]}. Expected class numbers for loss={SPARSE}."
        )
    if len(shape) < 2:
        return
    if not alike(shape[1:-1], targets.shape[1:]):
        rows = f", or loss={ONE_HOT} for one-hot rows" if alike(shape[1:], targets.shape[1:]) else ""
        raise UserError(
            f"{where} has the shape {list(targets.shape)}. Expected class numbers {batched(shape[1:-1])} for "
            f"loss={SPARSE}{rows}."
        )
    if shape[-1] is None:
        return
    bad = ((targets < 0) | (targets >= shape[-1])) & (targets != (np.nan if ignored is None else ignored))
    if bad.any():
        raise UserError(
            f"{where}: {bad.sum()} labels lie outside 0..{shape[-1] - 1}, the first is {targets[bad][0]:g} in row "
            f"{np.argwhere(bad)[0][0]}. A label that does not count is the `ignore_class` of the loss, "
            "keras.losses.SparseCategoricalCrossentropy."
        )


def batched(shape: Shape) -> str:
    """Return a shape as text for messages, with the batch axis first."""
    return f"[{', '.join(['n', *('any' if each is None else str(each) for each in shape)])}]"


def alike(wanted: Shape, given: Shape) -> bool:
    """Return whether shapes are equal, except for a last axis of size 1 in one of them."""
    return fits_shape(wanted, given) or fits_shape(_bare(wanted), _bare(given))


def _bare(shape: Shape) -> Shape:
    return shape[:-1] if shape[-1:] == (1,) else shape


def fits_shape(taken: Sequence[int | None], given: Sequence[int | None]) -> bool:
    """Return whether `given` is a shape that `taken` allows; None allows any length."""
    return len(taken) == len(given) and all(one in (None, other) for one, other in zip(taken, given, strict=True))
