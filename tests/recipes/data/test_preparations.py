"""What predictions make of raw examples is what training makes of them, for every kind of data."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hookline.recipes.data.arrays import arrays
from hookline.recipes.data.image_folder import image_folder
from hookline.recipes.data.images import ImageForm, decode_image
from hookline.trainer.input.data import Data

SIDE = 6


def inputs_of(data: Data) -> np.ndarray:
    """Return the training inputs as the source gives them, in the order of its rows."""
    return data.train.source.gather(tf.range(data.train.source.size, dtype=tf.int64))["inputs"].numpy()


def random_pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((SIDE, SIDE), {}),
        ((SIDE, SIDE, 3), {}),
        ((3, SIDE, SIDE), {"channels": "first"}),
        ((SIDE, SIDE), {"channels": "none"}),
        ((SIDE, SIDE, 3), {"scale": "none"}),
        ((7,), {"scale": "none"}),
    ],
)
def test_arrays(tmp_path, shape, options):
    inputs, labels = random_pixels(60, *shape), np.arange(60) % 3
    path = tmp_path / "own.npz"
    np.savez(path, x_train=inputs, y_train=labels)
    data = arrays(path=str(path), **options)
    assert data.preparation is not None
    assert np.array_equal(data.preparation.of_arrays(inputs), inputs_of(data))
    assert data.preparation.takes_images is (len(shape) == 3 and "scale" not in options) or shape == (SIDE, SIDE)


@pytest.mark.parametrize(("fit", "channels"), [("crop", 3), ("stretch", 1)])
def test_image_files(tmp_path, fit, channels):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(20):
            pixels = np.random.default_rng([number, len(label), label == "cat"]).integers(0, 256, (9, 14, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / label / f"{number}.png")
    data = image_folder(path=str(tmp_path), image_size=[8, 7], fit=fit, channels=channels)
    made = data.preparation
    assert made is not None
    form = ImageForm(*made.shape, made.fit)
    files = [data.train.name_of(position) for position in range(data.train.size)]
    pixels = np.stack([decode_image((tmp_path / file).read_bytes(), form) for file in files])
    assert np.array_equal(made.of_images(pixels), inputs_of(data)[data.train.indices])
