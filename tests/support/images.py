"""A folder of images, as a user would give one."""

from __future__ import annotations

import numpy as np
from PIL import Image

COLOURS = [(220, 30, 30), (30, 200, 30), (30, 30, 220), (220, 220, 220)]


def write_images(folder, *, images=16, classes=4):
    """Write a folder of small images for each class, each of a colour, unless it is there; return the whole folder."""
    generator = np.random.default_rng(0)
    for label in range(classes):
        colour = np.array(COLOURS[label]) if label < len(COLOURS) else generator.integers(30, 226, 3)
        directory = folder / f"class_{label}"
        if not directory.exists():
            directory.mkdir(parents=True)
            for number in range(images):
                pixels = np.clip(colour + generator.integers(-30, 31, (18, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(directory / f"{number:02}.png")
    return folder
