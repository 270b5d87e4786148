"""From an image file to pixels of one size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from recipes.data.image_formats import unreadable
from trainer.errors import UserError
from trainer.input.source import HOST

FITS = ("crop", "stretch")
BATCH = 64
LUMA = (0.2989, 0.5870, 0.1140)
"""Weights of red, green and blue in a grey value (ITU-R BT.601)."""


@dataclass(frozen=True)
class ImageForm:
    """Describe the pixels that every image becomes.

    Attributes:
        height: in pixels.
        width: in pixels.
        channels: 3 (colour) or 1 (grey).
        fit: "crop" keeps the proportions and cuts the middle out; "stretch" changes them and cuts nothing.
    """

    height: int
    width: int
    channels: int
    fit: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return height, width and channels."""
        return (self.height, self.width, self.channels)


def load_image(path: tf.Tensor, form: ImageForm) -> tf.Tensor:
    """Return an image file's pixels, uint8 of the form's shape. Made of TensorFlow ops that run on the CPU.

    The kind of file is told by its content, not by its name. Of an animation the first frame counts; transparency
    is left out; the orientation that a camera notes beside the pixels (EXIF) is not applied. Where the image shrinks,
    the filter widens, so that fine patterns do not alias.

    Args:
        path: string scalar.
        form: of the result.
    """
    image = tf.io.decode_image(tf.io.read_file(path), expand_animations=False)
    image = tf.ensure_shape(image, [None, None, None])
    if form.fit == "crop":
        image = _middle(image, form)
    image = tf.image.resize(image, (form.height, form.width), antialias=True)
    pixels = tf.cast(tf.round(tf.clip_by_value(_with_channels(image, form.channels), 0.0, 255.0)), tf.uint8)
    return tf.ensure_shape(pixels, form.shape)


def _middle(image: tf.Tensor, form: ImageForm) -> tf.Tensor:
    """Return the largest middle part that has the form's proportions: what "crop" keeps of the resized image."""
    extent = tf.cast(tf.shape(image)[:2], tf.float64)
    wanted = tf.constant([form.height, form.width], tf.float64)
    part = tf.round(wanted * tf.reduce_min(extent / wanted))
    part = tf.cast(tf.clip_by_value(part, 1.0, extent), tf.int32)
    top, left = tf.unstack((tf.shape(image)[:2] - part) // 2)
    return image[top : top + part[0], left : left + part[1]]


def _with_channels(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Return an image of 1 (grey), 2 (grey, opacity), 3 (colour) or 4 (colour, opacity) channels with 1 or 3."""
    is_colour = tf.shape(image)[2] >= 3
    colour = tf.gather(image, tf.where(is_colour, [0, 1, 2], [0, 0, 0]), axis=2)
    if channels == 3:
        return colour
    grey = tf.reduce_sum(colour * (tf.constant(LUMA) / sum(LUMA)), axis=2, keepdims=True)
    return tf.where(is_colour, grey, colour[..., :1])


def decode_images(paths: Sequence[str], form: ImageForm) -> np.ndarray:
    """Return the pixels of image files, uint8 [files, height, width, channels]; decoded in parallel.

    Args:
        paths: files.
        form: of each.

    Raises:
        UserError: a file that cannot be read or decoded; names the first.
    """
    images = np.empty([len(paths), *form.shape], np.uint8)
    load = tf.autograph.experimental.do_not_convert(lambda path: load_image(path, form))
    done = 0
    with tf.device(HOST):
        files = tf.data.Dataset.from_tensor_slices(list(paths))
        pixels = files.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).batch(BATCH).prefetch(2)
        try:
            for batch in pixels:
                images[done : done + len(batch)] = batch.numpy()
                done += len(batch)
        except tf.errors.OpError as error:
            raise _broken_file(paths[done : done + BATCH], form) or error from error
    return images


def _broken_file(paths: Sequence[str], form: ImageForm) -> UserError | None:
    """Return the error for the first file of a few that cannot be loaded; None where now all can."""
    for path in paths:
        try:
            load_image(tf.constant(path), form)
        except tf.errors.OpError as error:
            return unreadable(path, error.message)
    return None
