"""What goes wrong inside a model of the user is reported in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError
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
            shape = listed_shapes(data.model_shape) if data.preparations else f"of shape {list(data.input_shape)}"
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


def listed_shapes(shapes: Mapping[str, Sequence[int | None]]) -> str:
    """Return names with their shapes, as text."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
