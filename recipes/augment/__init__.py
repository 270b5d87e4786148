"""Augmentations: how training examples are changed at random, and checks of the images that they get."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hookline.recipes import check_number
from hookline.trainer.errors import UserError
from hookline.trainer.objective import Batch

BORDERS = ("constant", "reflect", "nearest")
"""Ways to fill beyond the border of an image. TensorFlow's WRAP is left out: it repeats all pixels but one."""


def check_share(name: str, value: Any) -> float:
    """Return a share or a probability above 0."""
    return check_number(name, value, 0, 1, open_below=True)


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
