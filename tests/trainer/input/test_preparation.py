"""How raw examples become inputs: axes, range, refusals."""

import numpy as np
import pytest

from hookline.trainer.input.preparation import Preparation
from tests.support.refusals import assert_refused

PIXELS = Preparation((4, 5, 1), 2 / 255, -1.0, peak=255, axes="new")


def raw(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_channel_axis_is_added_moved_or_kept():
    images = raw(2, 4, 5, 1)
    assert np.array_equal(PIXELS.of_arrays(images), PIXELS.of_arrays(images[..., 0]))
    first = Preparation((4, 5, 3), axes="first")
    moved = raw(2, 3, 4, 5)
    assert np.array_equal(first.of_arrays(moved), np.moveaxis(moved, 1, -1).astype(np.float32))
    assert first.raw_shape == (3, 4, 5)
    assert np.array_equal(Preparation((7,)).of_arrays(raw(2, 7)), raw(2, 7).astype(np.float32))


def test_image_files_are_rescaled_to_the_peak_of_the_data():
    digits = Preparation((2, 2, 1), 2 / 16, -1.0, peak=16, axes="new")
    pixels = np.array([0, 255, 51, 102], np.uint8).reshape(1, 2, 2, 1)
    made = digits.of_images(pixels)
    assert made.dtype == np.float32
    assert made.ravel().tolist() == pytest.approx([-1.0, 1.0, -0.6, -0.2])
    assert digits.of_arrays(np.array([0, 16, 8, 4]).reshape(1, 2, 2)).ravel().tolist() == [-1.0, 1.0, 0.0, -0.5]


def test_invalid_raw_examples_are_refused():
    for values, message in (
        (raw(2, 5, 4), r"examples of shape \[5, 4\]. Expected \[4, 5\] or \[4, 5, 1\] for each"),
        (np.full((1, 4, 5), 300), "values from 300 to 300. Expected pixels from 0 to 255"),
        (np.full((1, 4, 5), 0.5), "values from 0.5 to 0.5. Expected pixels from 0 to 255"),
        (np.full((1, 4, 5), np.nan), "NaN or infinite"),
        (np.full((1, 4, 5), "a"), "dtype <U1. Expected numbers"),
    ):
        assert_refused(message, PIXELS.of_arrays, values)
    values = np.full((1, 4, 5, 1), 2, np.float32)
    PIXELS.of_arrays(values)
    assert (values == 2).all()
    assert PIXELS.takes_images
    assert not Preparation((4, 5, 1)).takes_images
    assert not Preparation((7,), peak=255).takes_images
