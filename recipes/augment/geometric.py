"""Affine augmentations."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import tensorflow as tf

from hookline.recipes.augment import ImageAugment
from hookline.trainer.errors import check_choice, check_number
from hookline.trainer.input.augment import targets_are_map
from hookline.trainer.input.order import uniform
from hookline.trainer.objective import Batch

BORDERS = ("constant", "reflect", "nearest")  # without TensorFlow's WRAP, which repeats all pixels except one
MAP = "map"


class Geometric(ImageAugment):
    """Transform each image by its own affine map.

    A "map" [batch, height, width] and targets [batch, height, width, ...], if the batch has them, are transformed too,
    with nearest-neighbor interpolation and a fill value of 0.
    """

    moves = True
    follows = (MAP,)
    interpolation = "NEAREST"

    def __init__(self, *, border: str, fill: float | None) -> None:
        check_choice("border", border, BORDERS)
        self.border, self.fill = border, None if fill is None else check_number("fill", fill, -math.inf)

    @abstractmethod
    def maps(self, seeds: tf.Tensor, height: int, width: int) -> tf.Tensor:
        """Return the affine maps from output to input coordinates: float32 [batch, 2, 3].

        The rows give the input's x and y as factors of the output's x, y and 1, in pixels from the first one's center.
        """

    def move(self, images: tf.Tensor, maps: tf.Tensor, interpolation: str, fill: float) -> tf.Tensor:
        """Return the transformed images. Subclasses may override it with a faster way to the same pixels."""
        return warp(images, maps, interpolation, self.border, fill)

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        images = batch["inputs"]
        height, width = images.shape[1:3]
        maps = self.maps(seeds, height, width)
        fill = self.black_and_white[0] if self.fill is None else self.fill
        changed = {**batch, "inputs": self.move(images, maps, self.interpolation, fill)}
        if MAP in batch:
            changed[MAP] = self.move(batch[MAP][..., None], maps, "NEAREST", 0.0)[..., 0]
        if targets_are_map(batch):
            targets = batch["targets"]
            flat = tf.cast(targets if targets.shape.rank == 4 else targets[..., None], tf.float32)
            moved = tf.cast(self.move(flat, maps, "NEAREST", 0.0), targets.dtype)
            changed["targets"] = moved if targets.shape.rank == 4 else moved[..., 0]
        return changed


def warp(images: tf.Tensor, maps: tf.Tensor, interpolation: str, border: str, fill: float) -> tf.Tensor:
    """Return images resampled at the input coordinates that `maps` give (see `Geometric.maps`)."""
    rows = tf.reshape(maps, [-1, 6])
    warped: Any = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.concat([rows, tf.zeros_like(rows[:, :2])], axis=1),
        output_shape=tf.constant(images.shape[1:3].as_list(), tf.int32),
        fill_value=fill,
        interpolation=interpolation,
        fill_mode=border.upper(),
    )
    return tf.ensure_shape(warped, images.shape)


def moved_back(right: tf.Tensor, down: tf.Tensor) -> tf.Tensor:
    """Return the maps that shift images right and down by so many pixels: float32 [batch, 2, 3]."""
    right, down = tf.cast(right, tf.float32), tf.cast(down, tf.float32)
    one, zero = tf.ones_like(right), tf.zeros_like(right)
    return tf.stack([tf.stack([one, zero, -right], axis=1), tf.stack([zero, one, -down], axis=1)], axis=1)


class Rotate(Geometric):
    """Rotate images around their center by an angle uniform in [-degrees, degrees], with bilinear interpolation."""

    priority = 40
    interpolation = "BILINEAR"

    def __init__(self, *, degrees: float = 15.0, border: str = "constant", fill: float | None = None) -> None:
        super().__init__(border=border, fill=fill)
        self.degrees = check_number("degrees", degrees, 0, 180, above_minimum=True)

    def maps(self, seeds: tf.Tensor, height: int, width: int) -> tf.Tensor:
        largest = math.radians(self.degrees)
        return rotations(uniform(seeds, "angle", low=-largest, high=largest), height, width)


def rotations(angles: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return the maps that rotate images counterclockwise around their center, by radians: float32 [batch, 2, 3]."""
    cosine, sine = tf.cos(angles), tf.sin(angles)
    x, y = (width - 1) / 2.0, (height - 1) / 2.0
    from_x = tf.stack([cosine, -sine, x - cosine * x + sine * y], axis=1)
    return tf.stack([from_x, tf.stack([sine, cosine, y - sine * x - cosine * y], axis=1)], axis=1)
