"""How raw examples become inputs: axes, range, refusals."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.inference.preparation import Preparation

PIXELS = Preparation((4, 5, 1), 2 / 255, -1.0, peak=255, axes="new")


def raw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_pixels_are_scaled_in_float32_to_the_range_of_training():
    made = PIXELS.of_arrays(np.array([0, 255, 51], np.uint8).repeat(20).reshape(3, 4, 5))
    assert made.dtype == np.float32
    assert made.shape == (3, 4, 5, 1)
    assert made[:, 0, 0, 0].tolist() == pytest.approx([-1.0, 1.0, -0.6])


def test_axes_of_channels_are_added_moved_or_kept():
    images = raw(2, 4, 5, 1)
    assert np.array_equal(PIXELS.of_arrays(images), PIXELS.of_arrays(images[..., 0]))
    first = Preparation((4, 5, 3), axes="first")
    moved = raw(2, 3, 4, 5)
    assert np.array_equal(first.of_arrays(moved), np.moveaxis(moved, 1, -1).astype(np.float32))
    assert first.raw_shape == (3, 4, 5)
    assert np.array_equal(Preparation((7,)).of_arrays(raw(2, 7)), raw(2, 7).astype(np.float32))


def test_image_files_are_brought_to_the_peak_of_the_data():
    digits = Preparation((2, 2, 1), 2 / 16, -1.0, peak=16, axes="new")
    pixels = np.array([0, 255, 51, 102], np.uint8).reshape(1, 2, 2, 1)
    assert digits.of_images(pixels).ravel().tolist() == pytest.approx([-1.0, 1.0, -0.6, -0.2])
    assert digits.of_arrays(np.array([0, 16, 8, 4]).reshape(1, 2, 2)).ravel().tolist() == [-1.0, 1.0, 0.0, -0.5]


def test_the_raw_examples_are_left_as_they_were():
    values = np.ones((1, 4, 5, 1), np.float32)
    PIXELS.of_arrays(values)
    assert (values == 1).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (raw(2, 5, 4), r"examples of shape \[5, 4\]. Expected \[4, 5\] or \[4, 5, 1\] for each"),
        (np.full((1, 4, 5), 300), "values from 300 to 300. Expected pixels from 0 to 255"),
        (np.full((1, 4, 5), -0.5), "values from -0.5 to -0.5. Expected pixels"),
        (np.full((1, 4, 5), np.nan), "NaN or infinite"),
        (np.full((1, 4, 5), "a"), "dtype <U1. Expected numbers"),
    ],
)
def test_what_cannot_be_prepared_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        PIXELS.of_arrays(values)


@pytest.mark.parametrize(
    ("preparation", "takes"),
    [(PIXELS, True), (Preparation((4, 5, 1)), False), (Preparation((7,), peak=255), False)],
)
def test_image_files_are_for_pixels_alone(preparation, takes):
    assert preparation.takes_images is takes


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.floats(-10, 10),
    st.floats(-10, 10),
    st.one_of(st.none(), st.floats(1, 1e6)),
    st.sampled_from(["crop", "stretch"]),
    st.sampled_from(["last", "first", "new"]),
)
def test_json_gives_it_back(shape, scale, offset, peak, fit, axes):
    made = Preparation(tuple(shape), scale, offset, peak, fit, axes)
    assert Preparation.from_json(made.as_json()) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [0]}, "Invalid shape"),
        ({"shape": "44"}, "Invalid shape"),
        ({"shape": [True]}, "Invalid shape"),
        ({"scale": "1"}, "Invalid scale"),
        ({"offset": float("nan")}, "Invalid offset"),
        ({"peak": -1}, "Invalid peak"),
        ({"fit": "squeeze"}, "Invalid fit"),
        ({"axes": ["last"]}, "Invalid axes"),
        ({"shape": [4], "axes": "new"}, r"Invalid axes of the preparation for the shape \[4\]"),
        ({"more": 1}, "other fields"),
    ],
)
def test_json_that_is_none_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        Preparation.from_json({**PIXELS.as_json(), **change})


def test_nothing_heavy_is_imported():
    code = (
        "import sys, trainer.inference.preparation, trainer.inference.card, scripts.predict;"
        "import scripts.prediction.examples, scripts.prediction.model, scripts.prediction.ranking;"
        "import scripts.prediction.results, recipes.data.image_decoding, trainer.export.formats;"
        "print([m for m in ('tensorflow', 'keras', 'omegaconf', 'hydra', 'rich', 'sklearn', 'scipy', 'matplotlib')"
        " if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
