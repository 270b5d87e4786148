"""A folder of images, as a user would give one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf


def write_images(folder: Path) -> Path:
    """Write 4 folders of 16 small images, each class of a colour, and return the folder that holds them.

    Args:
        folder: made if it does not exist; else left as it is.
    """
    generator = np.random.default_rng(0)
    for label, colour in enumerate([(220, 30, 30), (30, 200, 30), (30, 30, 220), (220, 220, 220)]):
        directory = folder / f"class_{label}"
        if not directory.exists():
            directory.mkdir(parents=True)
            for number in range(16):
                pixels = np.clip(np.array(colour) + generator.integers(-30, 31, (18, 16, 3)), 0, 255)
                file = directory / f"{number:02}.png"
                file.write_bytes(tf.io.encode_png(tf.constant(pixels, tf.uint8)).numpy())
    return folder
