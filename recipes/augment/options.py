"""Checks of an augmentation's options, and of the images that it gets."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.objective import Batch

BORDERS = ("constant", "reflect", "nearest")
"""Ways to fill beyond the border of an image. TensorFlow's WRAP is left out: it repeats all pixels but one."""


def check_number(name: str, value: Any, *, maximum: float, above_zero: bool = False) -> float:
    """Return a number in [0, maximum], or above 0."""
    if not _is_finite(value) or not 0 <= value <= maximum or (above_zero and value == 0):
        interval = f"{'(' if above_zero else '['}0, {maximum:g}]"
        raise UserError(f"{name}={value} received. Expected a number in {interval}.")
    return float(value)


def check_share(name: str, value: Any) -> float:
    """Return a share or a probability above 0."""
    return check_number(name, value, maximum=1.0, above_zero=True)


def check_border(value: Any) -> str:
    """Return how the outside of an image is filled: one of `BORDERS`."""
    if value not in BORDERS:
        raise unknown_name("border", str(value), BORDERS)
    return value


def check_fill(value: Any) -> float:
    """Return the value of pixels that have none of their own."""
    if not _is_finite(value):
        raise UserError(f"fill={value} received. Expected a number, such as -1 for black or 0 for grey.")
    return float(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_floating(batch: Batch) -> None:
    """Refuse inputs that are not floating point numbers."""
    if not batch["inputs"].dtype.is_floating:
        raise UserError(f"the inputs are {batch['inputs'].dtype.name}. Expected floating point.")


def image_inputs(batch: Batch) -> tf.Tensor:
    """Return the inputs, once it is certain that they are images: floating point [batch, height, width, channels]."""
    inputs = batch["inputs"]
    if inputs.shape.rank != 4 or not inputs.dtype.is_floating:
        raise UserError(
            f"the inputs are {inputs.dtype.name} of shape {list(inputs.shape[1:])}. Expected images: floating point "
            "[height, width, channels]."
        )
    return inputs
