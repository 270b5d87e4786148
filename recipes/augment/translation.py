"""Move images by whole pixels: what crops and shifts have in common."""

from __future__ import annotations

import tensorflow as tf

from recipes.augment.geometric import Geometric


class Translation(Geometric):
    """Move each image by whole pixels of its own."""

    def move(self, images: tf.Tensor, maps: tf.Tensor, interpolation: str, fill: float) -> tf.Tensor:
        del interpolation  # whole pixels stay whole
        left, up = tf.cast(maps[:, 0, 2], tf.int32), tf.cast(maps[:, 1, 2], tf.int32)
        return translate(images, left, up, self.border, fill)


def translate(images: tf.Tensor, left: tf.Tensor, up: tf.Tensor, border: str, fill: float) -> tf.Tensor:
    """Return images that are moved, by copying pixels: two to four times as fast as a projective transform.

    Args:
        images: [batch, height, width, channels].
        left: int32 [batch], pixels.
        up: int32 [batch], pixels.
        border: what stands beyond the border, see `Geometric`.
        fill: value of pixels from outside where the border is constant.
    """
    height, width, channels = images.shape[1:]
    rows, inside_rows = _sources(up, height, border)
    columns, inside_columns = _sources(left, width, border)
    first = tf.range(tf.shape(images)[0])[:, None, None] * (height * width)
    places = first + rows[:, :, None] * width + columns[:, None, :]
    pixels = tf.reshape(images, [-1, channels])
    if border == "constant":
        outside = tf.shape(pixels)[0]
        places = tf.where(inside_rows[:, :, None] & inside_columns[:, None, :], places, outside)
        pixels = tf.concat([pixels, tf.fill([1, channels], tf.cast(fill, images.dtype))], axis=0)
    return tf.ensure_shape(tf.gather(pixels, places), images.shape)


def _sources(shift: tf.Tensor, size: int, border: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Return which row or column each comes from, int32 [batch, size], and whether it lies within the image."""
    wanted = tf.range(size)[None, :] + shift[:, None]
    inside = (wanted >= 0) & (wanted < size)
    if border == "reflect":
        place = tf.math.floormod(wanted, 2 * size)
        return tf.minimum(place, 2 * size - 1 - place), inside
    return tf.clip_by_value(wanted, 0, size - 1), inside
