"""Augmentations: how training examples are changed at random, and checks of the images that they get."""

from __future__ import annotations

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.objective import Batch


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
