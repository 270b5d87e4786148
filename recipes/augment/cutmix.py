"""Cutmix: a rectangle of one image in another, and targets by area."""

from __future__ import annotations

import tensorflow as tf

from recipes.augment.beta import beta
from recipes.augment.mixing import random_partners
from recipes.augment.options import check_number, image_inputs
from recipes.augment.rectangles import random_rectangles
from trainer.input.augment import Augment
from trainer.input.draws import chance
from trainer.objective import TARGET_SHARES, Batch


class Cutmix(Augment):
    """Put a rectangle of another image of the batch in its place in each image; targets mix by the share of the pixels.

    The rectangle has the image's proportions and the share 1 - w of its area, with w ~ Beta(alpha, alpha), and lies
    around a random pixel; what is beyond the border is cut off. Yun et al. 2019, "CutMix: Regularization Strategy to
    Train Strong Classifiers with Localizable Features", equations 1 and 2.
    """

    priority = 90
    mixes = True

    def __init__(self, *, alpha: float = 1.0, probability: float = 0.5) -> None:
        """Check the options.

        Args:
            alpha: above 0, at most 100; 1: every size is equally likely.
            probability: of an image to get a rectangle, in (0, 1].

        Raises:
            UserError: an option out of range.
        """
        self.alpha = check_number("alpha", alpha, maximum=100.0, above_zero=True)
        self.probability = check_number("probability", probability, maximum=1.0, above_zero=True)

    def check(self, batch: Batch) -> None:
        image_inputs(batch)

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        images, shares = image_inputs(batch), batch[TARGET_SHARES]
        height, width = images.shape[1:3]
        side = tf.sqrt(1.0 - beta(seeds, "weight", self.alpha))
        side = tf.where(chance(seeds, "mixed", self.probability), side, 0.0)
        tall, wide = (tf.cast(side * float(size), tf.int32) for size in (height, width))
        inside = random_rectangles(seeds, tall, wide, height, width)
        partners = random_partners(seeds)
        taken = tf.reduce_mean(tf.cast(inside[..., 0], shares.dtype), axis=[1, 2])[:, None]
        return {
            **batch,
            "inputs": tf.where(inside, tf.gather(images, partners), images),
            TARGET_SHARES: (1.0 - taken) * shares + taken * tf.gather(shares, partners),
        }
