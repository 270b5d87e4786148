"""Rectangles in images, one for each example, cut off at the border."""

from __future__ import annotations

import tensorflow as tf

from trainer.input.draws import whole_numbers


def random_rectangles(seeds: tf.Tensor, tall: tf.Tensor, wide: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return which pixels lie in a rectangle around a random pixel, each equally likely.

    What would lie beyond the border is cut off.

    Args:
        seeds: int32 [batch, 2].
        tall: pixels, int32 [batch].
        wide: pixels, int32 [batch].
        height: of the images.
        width: of the images.

    Returns:
        bool [batch, height, width, 1].
    """
    rows = _ranges(whole_numbers(seeds, "row", 0, height - 1), tall, height)
    columns = _ranges(whole_numbers(seeds, "column", 0, width - 1), wide, width)
    return tf.logical_and(rows[:, :, None, None], columns[:, None, :, None])


def _ranges(middle: tf.Tensor, extent: tf.Tensor, size: int) -> tf.Tensor:
    """Return which places lie in a range around its middle: bool [batch, size]."""
    first = (middle - extent // 2)[:, None]
    places = tf.range(size)[None, :]
    return tf.logical_and(places >= first, places < first + extent[:, None])
