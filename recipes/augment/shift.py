"""Shift: move every image a little, by whole pixels."""

from __future__ import annotations

import tensorflow as tf

from recipes.augment.geometric import moved_back
from recipes.augment.options import check_number
from recipes.augment.translation import Translation
from trainer.errors import UserError
from trainer.input.draws import whole_numbers
from trainer.objective import Batch


class Shift(Translation):
    """Move images by whole pixels, up to a share of their height and of their width, each place equally likely."""

    priority = 30

    def __init__(self, *, share: float = 0.1, border: str = "constant", fill: float = -1.0) -> None:
        """Check the options.

        Args:
            share: of height and width, in (0, 1): the farthest move, rounded to whole pixels.
            border: "constant", "reflect" or "nearest": what comes in from outside.
            fill: value of what comes in from outside a constant border; -1 is black.

        Raises:
            UserError: an option out of range.
        """
        super().__init__(border=border, fill=fill)
        self.share = check_number("share", share, maximum=1.0, above_zero=True)

    def check(self, batch: Batch) -> None:
        super().check(batch)
        largest = max(batch["inputs"].shape[1:3])
        if not round(self.share * largest):
            raise UserError(
                f"share={self.share:g} received: that is less than half a pixel of {largest}, and moves nothing. "
                f"Expected at least {1 / largest:.2g}."
            )

    def maps(self, seeds: tf.Tensor, height: int, width: int) -> tf.Tensor:
        most_right, most_down = round(self.share * width), round(self.share * height)
        right = whole_numbers(seeds, "right", -most_right, most_right)
        return moved_back(right, whole_numbers(seeds, "down", -most_down, most_down))
