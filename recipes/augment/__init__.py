"""Augmentations: random changes to training examples, with a base class for each kind of input."""

from __future__ import annotations

from hookline.trainer.errors import UserError
from hookline.trainer.input.augment import Augment
from hookline.trainer.objective import Batch


class FloatAugment(Augment):
    """Change floating point inputs of any shape."""

    def check(self, batch: Batch) -> None:
        if not batch["inputs"].dtype.is_floating:
            raise UserError(f"the inputs are {batch['inputs'].dtype.name}. Expected floating point.")


class ImageAugment(Augment):
    """Change images, floating point [batch, height, width, channels]."""

    def check(self, batch: Batch) -> None:
        inputs = batch["inputs"]
        if inputs.shape.rank != 4 or not inputs.dtype.is_floating:
            raise UserError(
                f"the inputs are {inputs.dtype.name} of shape {list(inputs.shape[1:])}. Expected images: floating "
                "point [height, width, channels]."
            )
