"""Augmentations that mix examples or cover parts of images."""

from __future__ import annotations

import functools
import math

import numpy as np
import tensorflow as tf

from hookline.recipes.augment import FloatAugment, ImageAugment
from hookline.trainer.errors import check_number
from hookline.trainer.input.order import chance, uniform, whole_numbers
from hookline.trainer.objective import SOFT_TARGETS, Batch


def random_partners(seeds: tf.Tensor) -> tf.Tensor:
    """Return a random permutation that gives each example a partner, perhaps itself: int32 [batch]."""
    return tf.argsort(uniform(seeds, "partner"), stable=True)


GRID, PARTS = 20_001, 4_096


def beta(seeds: tf.Tensor, salt: str, alpha: float) -> tf.Tensor:
    """Return draws from Beta(alpha, alpha): float32 [n] in [0, 1]."""
    with tf.init_scope():
        quantiles = tf.constant(_lower_quantiles(alpha))
    place = uniform(seeds, salt, high=float(PARTS))
    first = tf.minimum(tf.cast(place, tf.int32), PARTS - 1)
    low, high = tf.gather(quantiles, first), tf.gather(quantiles, first + 1)
    lower = (low + (high - low) * (place - tf.cast(first, tf.float32))) ** (1.0 / min(alpha, 1.0))
    return tf.where(uniform(seeds, f"{salt}/side") < 0.5, lower, 1.0 - lower)


@functools.cache
def _lower_quantiles(alpha: float) -> np.ndarray:
    """Return x^p at evenly spaced quantiles of x in [0, 1/2], with p = min(alpha, 1): float32 [PARTS + 1].

    The density of t = x^p is finite at 0 for every alpha: x^(alpha - p) (1 - x)^(alpha - 1) up to a factor.
    """
    power = min(alpha, 1.0)
    t = np.linspace(0.0, 0.5**power, GRID)
    x = t ** (1.0 / power)
    density = x ** (alpha - power) * (1.0 - x) ** (alpha - 1.0)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return np.interp(np.linspace(0.0, 1.0, PARTS + 1), below / below[-1], t).astype(np.float32)


def random_rectangles(seeds: tf.Tensor, tall: tf.Tensor, wide: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return the mask of a rectangle around a random pixel: bool [batch, height, width, 1]."""
    rows = _ranges(whole_numbers(seeds, "row", 0, height - 1), tall, height)
    columns = _ranges(whole_numbers(seeds, "column", 0, width - 1), wide, width)
    return tf.logical_and(rows[:, :, None, None], columns[:, None, :, None])


def _ranges(middle: tf.Tensor, extent: tf.Tensor, size: int) -> tf.Tensor:
    """Return the mask of a range of places around `middle`: bool [batch, size]."""
    first = (middle - extent // 2)[:, None]
    places = tf.range(size)[None, :]
    return tf.logical_and(places >= first, places < first + extent[:, None])


class Mixup(FloatAugment):
    """Mix examples and their targets with others of the batch: w x + (1 - w) x', with w ~ Beta(alpha, alpha).

    A weight is drawn for each example. Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization", equation 2 and
    section 3.
    """

    mixes = True
    priority = 80

    def __init__(self, *, alpha: float = 0.2, probability: float = 1.0) -> None:
        self.alpha = check_number("alpha", alpha, 0, 100, above_minimum=True)
        self.probability = check_number("probability", probability, 0, 1, above_minimum=True)

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        mixed = chance(seeds, "mixed", self.probability)
        own = tf.where(mixed, beta(seeds, "weight", self.alpha), 1.0)
        partners, changed = random_partners(seeds), dict(batch)
        for name in ("inputs", SOFT_TARGETS):
            tensor = batch[name]
            share = tf.cast(tf.reshape(own, [-1, *[1] * (tensor.shape.rank - 1)]), tensor.dtype)
            changed[name] = share * tensor + (1.0 - share) * tf.gather(tensor, partners)
        return changed


class Cutmix(ImageAugment):
    """Paste a rectangle of another image of the batch into each image, and mix targets by the share of the pixels.

    The rectangle has the image's aspect ratio and the share 1 - w of its area, with w ~ Beta(alpha, alpha); it is
    centered on a random pixel and clipped at the border. Yun et al. 2019, "CutMix: Regularization Strategy to Train
    Strong Classifiers with Localizable Features", equations 1 and 2.
    """

    mixes = True
    priority = 90

    def __init__(self, *, alpha: float = 1.0, probability: float = 0.5) -> None:
        self.alpha = check_number("alpha", alpha, 0, 100, above_minimum=True)
        self.probability = check_number("probability", probability, 0, 1, above_minimum=True)

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        images, shares = batch["inputs"], batch[SOFT_TARGETS]
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
            SOFT_TARGETS: (1.0 - taken) * shares + taken * tf.gather(shares, partners),
        }


class Cutout(ImageAugment):
    """Cover a rectangle that is centered on a random pixel and clipped at the border.

    DeVries and Taylor 2017, "Improved Regularization of Convolutional Neural Networks with Cutout": half the height and
    width for CIFAR-10.
    """

    priority = 70

    def __init__(self, *, share: float = 0.5, fill: float | None = None, probability: float = 1.0) -> None:
        self.share = check_number("share", share, 0, 1, above_minimum=True)
        self.fill = None if fill is None else check_number("fill", fill, -math.inf)
        self.probability = check_number("probability", probability, 0, 1, above_minimum=True)

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        images = batch["inputs"]
        height, width = images.shape[1:3]
        drawn = tf.cast(chance(seeds, "covered", self.probability), tf.int32)
        tall, wide = round(self.share * height) * drawn, round(self.share * width) * drawn
        fill = sum(self.black_and_white) / 2.0 if self.fill is None else self.fill
        covered = random_rectangles(seeds, tall, wide, height, width)
        return {**batch, "inputs": tf.where(covered, tf.cast(fill, images.dtype), images)}
