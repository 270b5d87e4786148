"""Image files of various kinds, made from pixels."""

import io

import numpy as np
from PIL import Image


def encoded(pixels, kind="PNG", mode=None, **settings):
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    if mode is not None:
        image = image.convert(mode)
    stream = io.BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()
