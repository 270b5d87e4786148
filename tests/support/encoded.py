"""Image files of every kind that people have, from pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def encoded(pixels: Any, kind: str = "PNG", mode: str | None = None, **settings: Any) -> bytes:
    """Return a file of 8 bits a value."""
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    if mode is not None:
        image = image.convert(mode)
    stream = io.BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()
