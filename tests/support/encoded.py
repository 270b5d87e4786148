"""Image files of every kind that people have, from pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image


def encoded(pixels: Any, kind: str = "PNG", mode: str | None = None, **settings: Any) -> bytes:
    """Return a file of 8 bits a value.

    Args:
        pixels: [height, width] or [height, width, channels], 0..255.
        kind: of the file, as Pillow names it.
        mode: of Pillow, such as "CMYK" or "P"; None for what the channels say.
        settings: of Pillow's encoder.
    """
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    if mode is not None:
        image = image.convert(mode)
    stream = io.BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def deep_png(values: Any) -> bytes:
    """Return a PNG of 16 bits a value.

    Args:
        values: [height, width, channels], 0..65535, 1 to 4 channels.
    """
    return tf.io.encode_png(tf.constant(values, tf.uint16)).numpy()
