"""A folder of images, as a user would give one, and a file such as MNIST's."""

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

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


def write_mnist(path, train=500, test=200, **changes):
    """Write a file like MNIST's, with 8 x 8 digits enlarged to 28 x 28 pixels and repeated as often as needed."""
    bunch = load_digits()
    rows = np.arange(train + test) % len(bunch.images)
    images = np.pad(np.kron(bunch.images * 15, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    given = {"x": images[rows], "y": bunch.target[rows].astype(np.uint8)}
    parts = {"train": slice(0, train), "test": slice(train, None)}
    arrays = {f"{name}_{part}": array[place] for name, array in given.items() for part, place in parts.items()}
    np.savez(path, **(arrays | changes))
