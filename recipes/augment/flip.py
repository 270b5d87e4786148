"""Flip: mirror images."""

from __future__ import annotations

import tensorflow as tf

from recipes.augment.geometric import Geometric
from recipes.augment.options import check_flag, check_number
from trainer.errors import UserError
from trainer.input.draws import chance


class Flip(Geometric):
    """Mirror images left to right, upside down, or each with a chance of its own."""

    priority = 20

    def __init__(self, *, horizontal: bool = True, vertical: bool = False, probability: float = 0.5) -> None:
        """Check the options.

        Args:
            horizontal: whether left and right may change places.
            vertical: whether top and bottom may change places.
            probability: of each of the two, in (0, 1). With 1, training would see mirrored images alone.

        Raises:
            UserError: an option out of range, or neither of the two.
        """
        super().__init__(border="constant", fill=0.0)
        self.horizontal, self.vertical = check_flag("horizontal", horizontal), check_flag("vertical", vertical)
        self.probability = check_number("probability", probability, maximum=1.0, above_zero=True)
        if probability == 1:
            raise UserError("probability=1 received: all training images would be mirrored. Expected less than 1.")
        if not horizontal and not vertical:
            raise UserError("horizontal=false and vertical=false received. Expected at least one that is true.")

    def maps(self, seeds: tf.Tensor, height: int, width: int) -> tf.Tensor:
        x_sign, y_sign = (
            1.0 - 2.0 * tf.cast(chance(seeds, salt, self.probability if wanted else 0.0), tf.float32)
            for salt, wanted in (("horizontal", self.horizontal), ("vertical", self.vertical))
        )
        zero = tf.zeros_like(x_sign)
        to_right, to_bottom = (tf.where(x_sign < 0.0, width - 1.0, 0.0), tf.where(y_sign < 0.0, height - 1.0, 0.0))
        rows = [tf.stack([x_sign, zero, to_right], axis=1), tf.stack([zero, y_sign, to_bottom], axis=1)]
        return tf.stack(rows, axis=1)

    def move(self, images: tf.Tensor, maps: tf.Tensor, interpolation: str, fill: float) -> tf.Tensor:
        for wanted, sign, axis in ((self.horizontal, maps[:, 0, 0], 2), (self.vertical, maps[:, 1, 1], 1)):
            if wanted:
                # This op takes a whole example from one or the other; tf.where would ask for every pixel.
                images = tf.raw_ops.Select(condition=sign < 0.0, x=tf.reverse(images, [axis]), y=images)
        return images
