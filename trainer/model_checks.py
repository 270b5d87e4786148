"""Checks of any model against the data that it is given: a mismatch is reported in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.graph import is_graph
from hookline.trainer.input.data import Data

SCOPE = re.compile(r"[A-Za-z0-9_.\\/>-]*")
"""What TensorFlow takes as the name of a scope, which every layer opens."""
LONGEST_REASON = 300
NOISE = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\}|\[Op:.*", re.DOTALL)
"""Keras's colours, and positions in TensorFlow's graphs."""


@contextmanager
def told_in_one_line(what: str, data: Data | None = None) -> Iterator[None]:
    """Raise a `UserError` where code of the user's model raises."""
    try:
        yield
    except (UserError, MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as error:
        reason = NOISE.sub("", str(error).partition("\n\nArguments received")[0])
        reason = " ".join(reason.split())[:LONGEST_REASON].rstrip(" .")
        expected = ""
        if data is not None:
            shape = _listed(data.model_shape) if data.preparations else f"of shape {list(data.input_shape)}"
            of_classes = f" and {data.classes} classes" if data.classes else ""
            expected = f" Expected a model for inputs {shape}{of_classes}.{shape_hint(data)}"
        raise UserError(
            f"{what} raised {type(error).__name__}: {reason}.{expected} debug=true shows the traceback."
        ) from error


def shape_hint(data: Data) -> str:
    """Return a sentence on the option that leaves examples their shape, where an axis of channels was added to them."""
    if data.preparation is None or data.preparation.axes != "new":
        return ""
    return f" data.channels=none leaves examples as they are stored, {list(data.preparation.raw_shape)}."


def check_names(model: keras.Model) -> None:
    """Refuse layers with names that TensorFlow has no scope for."""
    for layer in model._flatten_layers():
        if not SCOPE.fullmatch(layer.name):
            raise UserError(
                f"The model '{model.name}' has a layer of the name '{layer.name}'. Expected letters without accents, "
                "digits, '_', '.' and '-' alone, such as "
                f"name='{re.sub(r'[^A-Za-z0-9_.-]+', '_', layer.name)}': TensorFlow takes no other."
            )


def check_classes(data: Data, task: str) -> None:
    """Refuse data without classes for a task that needs the class of each example."""
    if not data.classes:
        raise UserError(
            f"task={task} needs a class for each example, and data '{data.name}' has no classes. Expected integer "
            "targets [examples], or task=supervised task.loss=mean_squared_error for numbers, binary_crossentropy for "
            "several labels or maps: see recipe=regression, multi_label and segmentation."
        )


def check_inputs(model: keras.Model, data: Data) -> None:
    """Refuse a model that does not take the examples of the data."""
    if not is_graph(model):
        return
    if data.preparations:
        _check_several(model, data)
        return
    taken = [list(each.shape[1:]) for each in model.inputs]
    if len(taken) != 1:
        raise UserError(
            f"The model '{model.name}' takes {len(taken)} inputs, of shapes {', '.join(map(str, taken))}. Expected "
            f"one, of shape {list(data.input_shape)}: the data gives one tensor an example."
        )
    if not _fits(taken[0], data.input_shape):
        hint = shape_hint(data) if data.preparation and _fits(taken[0], data.preparation.raw_shape) else ""
        raise UserError(
            f"The model '{model.name}' takes inputs of shape {taken[0]}. Expected {list(data.input_shape)}, as the "
            f"data gives: let the model begin with keras.Input(input_shape), or take other data.{hint}"
        )


def _check_several(model: keras.Model, data: Data) -> None:
    given = getattr(model, "_inputs_struct", None)  # of a functional model, as it was made
    names = list(given) if isinstance(given, dict) else [each.name for each in model.inputs]
    taken = dict(zip(names, (list(each.shape[1:]) for each in tf.nest.flatten(given or model.inputs)), strict=False))
    wanted = data.model_shape
    if taken.keys() != wanted.keys() or not all(_fits(taken[name], wanted[name]) for name in wanted):
        raise UserError(
            f"The model '{model.name}' takes the inputs {_listed(taken)}. Expected those of the data by their names, "
            f"such as keras.Input(input_shape['{next(iter(wanted))}'], name='{next(iter(wanted))}'): {_listed(wanted)}."
        )


def _listed(shapes: Mapping[str, Sequence[int | None]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def check_one_output(model: keras.Model, expected: str, each: tuple[int, ...] | None = None) -> None:
    """Refuse a model that returns several tensors, one in a list or under a name, or one of another shape."""
    outputs = getattr(model, "_outputs_struct", None)  # of a functional model, as its call returns them
    if isinstance(outputs, dict | list):
        raise several_outputs(model.name, outputs, expected)
    shape = getattr(model, "output_shape", None)
    if each is not None and isinstance(shape, tuple) and shape[1:] != each:
        raise UserError(
            f"The network '{model.name}' returns the shape {shape}. Expected {expected}: end it with a Dense layer of "
            "that many units."
        )


def several_outputs(model: str, outputs: Any, expected: str) -> UserError:
    """Return the error for a model that returns anything but one tensor."""
    items = outputs.items() if isinstance(outputs, dict) else enumerate(outputs)
    listed = ", ".join(f"{key}: {list(each.shape)}" for key, each in items)
    return UserError(
        f"The model '{model}' returns a {type(outputs).__name__} ({listed}). Expected one tensor, {expected}: return "
        "that output alone, or take another network, such as model=plain_cnn or model=mlp."
    )


def _fits(taken: list[int | None], given: tuple[int, ...]) -> bool:
    return len(taken) == len(given) and all(one in (None, other) for one, other in zip(taken, given, strict=True))
