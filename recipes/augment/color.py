"""Color and noise."""

from __future__ import annotations

import tensorflow as tf

from hookline.recipes.augment import FloatAugment, ImageAugment
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.input.order import normal, uniform
from hookline.trainer.objective import Batch

GRAY = (0.299, 0.587, 0.114)  # luma weights of red, green and blue (ITU-R BT.601)


class Color(ImageAugment):
    """Change the colors of images, and clip the result to the range from black to white.

    Options apply in their order, with black as 0 and white as 1: brightness scales pixels, contrast their difference
    from the image's mean gray, saturation that from their own gray, each by a factor uniform in
    [1 - option, 1 + option]; hue rotates along its circle. An option of 0 changes nothing.
    """

    priority = 50

    def __init__(
        self, *, brightness: float = 0.2, contrast: float = 0.2, saturation: float = 0.0, hue: float = 0.0
    ) -> None:
        self.brightness = check_number("brightness", brightness, 0, 1)
        self.contrast = check_number("contrast", contrast, 0, 1)
        self.saturation = check_number("saturation", saturation, 0, 1)
        self.hue = check_number("hue", hue, 0, 0.5)
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            raise UserError("brightness, contrast, saturation and hue are all 0. Expected at least one above 0.")

    def check(self, batch: Batch) -> None:
        super().check(batch)
        images = batch["inputs"]
        channels = images.shape[-1]
        if (self.saturation or self.hue) and channels != 3:
            raise UserError(f"saturation and hue need 3 channels, and the images have {channels}. Set both to 0.")
        low, high = float(tf.reduce_min(images)), float(tf.reduce_max(images))
        black, white = self.black_and_white
        if low < black or high > white:
            raise UserError(f"the images go from {low:g} to {high:g}. Expected values in [{black:g}, {white:g}].")

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        images = batch["inputs"]
        black, white = self.black_and_white
        scale = 1.0 / (white - black)
        pixels = scale * images - scale * black
        if self.brightness:
            pixels = tf.clip_by_value(pixels * _factors(seeds, "brightness", self.brightness), 0.0, 1.0)
        if self.contrast:
            mean = tf.reduce_mean(_gray(pixels), axis=[1, 2], keepdims=True)
            pixels = _blended(pixels, mean, _factors(seeds, "contrast", self.contrast))
        if self.saturation:
            pixels = _blended(pixels, _gray(pixels), _factors(seeds, "saturation", self.saturation))
        if self.hue:
            turn = uniform(seeds, "hue", low=-self.hue, high=self.hue)[:, None, None]
            hue, saturation, value = tf.unstack(tf.image.rgb_to_hsv(pixels), axis=-1)
            pixels = tf.image.hsv_to_rgb(tf.stack([tf.math.floormod(hue + turn, 1.0), saturation, value], axis=-1))
        return {**batch, "inputs": tf.clip_by_value((white - black) * pixels + black, black, white)}


def _factors(seeds: tf.Tensor, salt: str, spread: float) -> tf.Tensor:
    return uniform(seeds, salt, [1, 1, 1], low=1.0 - spread, high=1.0 + spread)


def _gray(pixels: tf.Tensor) -> tf.Tensor:
    """Return the gray value of each pixel, [..., 1]: its luma for 3 channels, otherwise the mean over channels."""
    if pixels.shape[-1] == 3:
        return tf.reduce_sum(pixels * tf.constant(GRAY, pixels.dtype), axis=-1, keepdims=True)
    return tf.reduce_mean(pixels, axis=-1, keepdims=True)


def _blended(pixels: tf.Tensor, gray: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(gray + factors * (pixels - gray), 0.0, 1.0)


class Noise(FloatAugment):
    """Add independent Gaussian noise to every input value; the result may leave the range of the data."""

    priority = 60

    def __init__(self, *, stddev: float = 0.1) -> None:
        self.stddev = check_number("stddev", stddev, 0, above_minimum=True)

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        inputs = batch["inputs"]
        drawn = tf.cast(normal(seeds, "noise", inputs.shape[1:].as_list()), inputs.dtype)
        return {**batch, "inputs": inputs + self.stddev * drawn}
