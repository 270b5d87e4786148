"""Rotate: turn every image a little around its middle."""

from __future__ import annotations

import math

import tensorflow as tf

from recipes.augment.geometric import Geometric
from recipes.augment.options import check_number
from trainer.input.draws import uniform


class Rotate(Geometric):
    """Turn images around their middle, both ways, each angle equally likely; between pixels it interpolates."""

    priority = 40
    interpolation = "BILINEAR"

    def __init__(self, *, degrees: float = 15.0, border: str = "constant", fill: float = -1.0) -> None:
        """Check the options.

        Args:
            degrees: the largest angle, in (0, 180].
            border: "constant", "reflect" or "nearest": what comes in from outside.
            fill: value of what comes in from outside a constant border; -1 is black.

        Raises:
            UserError: an option out of range.
        """
        super().__init__(border=border, fill=fill)
        self.degrees = check_number("degrees", degrees, maximum=180.0, above_zero=True)

    def maps(self, seeds: tf.Tensor, height: int, width: int) -> tf.Tensor:
        largest = math.radians(self.degrees)
        return rotations(uniform(seeds, "angle", low=-largest, high=largest), height, width)


def rotations(angles: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return the maps of images that are turned counter-clockwise around their middle: float32 [batch, 2, 3].

    Args:
        angles: in radians, float32 [batch].
        height: of the images.
        width: of the images.
    """
    cosine, sine = tf.cos(angles), tf.sin(angles)
    x, y = (width - 1) / 2.0, (height - 1) / 2.0
    from_x = tf.stack([cosine, -sine, x - cosine * x + sine * y], axis=1)
    return tf.stack([from_x, tf.stack([sine, cosine, y - sine * x - cosine * y], axis=1)], axis=1)
