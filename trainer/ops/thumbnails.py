"""Small pictures of inputs."""

from __future__ import annotations

import tensorflow as tf

LARGEST = 32  # pixels a side


def thumbnails(images: tf.Tensor) -> tf.Tensor:
    """Return images of at most 32 pixels a side, shrunk by area with their proportions kept; small ones as they are.

    Args:
        images: numbers [batch, height, width, channels], of known height and width.

    Returns:
        float32 [batch, height, width, channels], in the range of the images.
    """
    images = tf.cast(images, tf.float32)
    height, width = images.shape[1:3]
    scale = LARGEST / max(height, width)
    if scale >= 1.0:
        return images
    return tf.image.resize(images, [max(1, round(height * scale)), max(1, round(width * scale))], method="area")
