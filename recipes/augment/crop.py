"""Crop: pad every image, and cut a part of the original size out of it at random."""

from __future__ import annotations

import tensorflow as tf

from recipes.augment.geometric import moved_back
from recipes.augment.translation import Translation
from trainer.errors import UserError
from trainer.input.checks import is_whole_number
from trainer.input.draws import whole_numbers
from trainer.objective import Batch


class Crop(Translation):
    """Pad images on all sides, and cut parts of their own size out, each place equally likely.

    He et al. 2015, "Deep Residual Learning for Image Recognition", section 4.2: 4 pixels for CIFAR-10, filled.
    """

    priority = 10

    def __init__(self, *, padding: int = 4, border: str = "reflect", fill: float = -1.0) -> None:
        """Check the options.

        Args:
            padding: pixels on each side, at least 1; less than the images are high and wide.
            border: "reflect", "constant" or "nearest": what the padding holds.
            fill: value of a constant padding; -1 is black.

        Raises:
            UserError: an option out of range.
        """
        super().__init__(border=border, fill=fill)
        if not is_whole_number(padding) or padding < 1:
            raise UserError(f"padding={padding} received. Expected a whole number of pixels, at least 1.")
        self.padding = padding

    def check(self, batch: Batch) -> None:
        super().check(batch)
        smallest = min(batch["inputs"].shape[1:3])
        if self.padding >= smallest:
            raise UserError(f"padding={self.padding} received for images of {smallest} pixels. Expected fewer.")

    def maps(self, seeds: tf.Tensor, height: int, width: int) -> tf.Tensor:
        right, down = (whole_numbers(seeds, salt, -self.padding, self.padding) for salt in ("right", "down"))
        return moved_back(right, down)
