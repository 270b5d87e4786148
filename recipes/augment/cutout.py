"""Cutout: cover a rectangle of every image."""

from __future__ import annotations

import tensorflow as tf

from recipes.augment.options import check_fill, check_number, image_inputs
from recipes.augment.rectangles import random_rectangles
from trainer.errors import UserError
from trainer.input.augment import Augment
from trainer.input.draws import chance
from trainer.objective import Batch


class Cutout(Augment):
    """Cover a rectangle around a random pixel; where it reaches beyond the border, less is covered.

    DeVries and Taylor 2017, "Improved Regularization of Convolutional Neural Networks with Cutout": half of height and
    width for CIFAR-10.
    """

    priority = 70

    def __init__(self, *, share: float = 0.5, fill: float = 0.0, probability: float = 1.0) -> None:
        """Check the options.

        Args:
            share: of height and width, in (0, 1].
            fill: value of what is covered; 0 is the middle between black and white.
            probability: of an image to be covered, in (0, 1].

        Raises:
            UserError: an option out of range.
        """
        self.share = check_number("share", share, maximum=1.0, above_zero=True)
        self.fill = check_fill(fill)
        self.probability = check_number("probability", probability, maximum=1.0, above_zero=True)

    def check(self, batch: Batch) -> None:
        smallest = min(image_inputs(batch).shape[1:3])
        if not round(self.share * smallest):
            raise UserError(
                f"share={self.share:g} received: that is less than half a pixel of {smallest}, and covers nothing. "
                f"Expected at least {1 / smallest:.2g}."
            )

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        images = image_inputs(batch)
        height, width = images.shape[1:3]
        drawn = tf.cast(chance(seeds, "covered", self.probability), tf.int32)
        tall, wide = round(self.share * height) * drawn, round(self.share * width) * drawn
        covered = random_rectangles(seeds, tall, wide, height, width)
        return {**batch, "inputs": tf.where(covered, tf.cast(self.fill, images.dtype), images)}
