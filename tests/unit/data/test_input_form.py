"""Stored inputs become what a network takes, by options that are checked."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from recipes.data.input_form import input_form
from trainer.errors import UserError


def form(shape, dtype="float32", *, scale="auto", channels="auto"):
    return input_form(shape, np.dtype(dtype), scale=scale, channels=channels, where="x.npy")


def made(stored, **options):
    found = form(stored.shape[1:], stored.dtype, **options)
    inputs = found.transform({"inputs": tf.constant(stored), "targets": tf.zeros([1])})["inputs"]
    assert inputs.dtype == tf.float32
    assert inputs.shape[1:] == found.shape
    return inputs.numpy()


@pytest.mark.parametrize(
    ("shape", "channels", "expected"),
    [
        ((5,), "auto", (5,)),
        ((4, 6), "auto", (4, 6, 1)),
        ((4, 6), "last", (4, 6, 1)),
        ((4, 6), "none", (4, 6)),
        ((4, 6, 3), "auto", (4, 6, 3)),
        ((3, 4, 6), "first", (4, 6, 3)),
        ((1, 4, 6), "last", (1, 4, 6)),
        ((3, 4, 6), "none", (3, 4, 6)),
        ((2, 3, 4, 6), "auto", (2, 3, 4, 6)),
        ((2, 3, 4, 6), "first", (3, 4, 6, 2)),
        ((3, 5, 3), "auto", (3, 5, 3)),
    ],
)
def test_the_axes_are_those_that_were_asked_for(shape, channels, expected):
    stored = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    found = made(stored, channels=channels)
    assert found.shape == (2, *expected)
    moved = np.moveaxis(stored, 1, -1) if channels == "first" else stored.reshape(2, *expected)
    np.testing.assert_array_equal(found, moved)


@pytest.mark.parametrize(
    ("dtype", "scale", "pixels"),
    [
        ("uint8", "auto", True),
        ("uint8", "none", False),
        ("float32", "auto", False),
        ("float64", "auto", False),
        ("int32", "auto", False),
        ("int64", "pixels", True),
        ("float16", "pixels", True),
    ],
)
def test_bytes_are_pixels_and_other_values_are_kept_unless_told_otherwise(dtype, scale, pixels):
    stored = np.array([[0, 51, 255]], dtype)
    np.testing.assert_allclose(made(stored, scale=scale), [[-1, -0.6, 1]] if pixels else stored, atol=1e-6)


def test_images_whose_channels_come_first_are_not_taken_for_others():
    with pytest.raises(UserError, match=r"x.npy: inputs of shape \[3, 32, 32\] look like.*channels=first.*=last"):
        form((3, 32, 32))
    with pytest.raises(UserError, match=r"inputs of shape \[32, 32\] received with data.channels=first"):
        form((32, 32), channels="first")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "pixel"}, "Unknown data.scale 'pixel'. Did you mean 'pixels'"),
        ({"channels": "frist"}, "Unknown data.channels 'frist'. Did you mean 'first'"),
        ({"dtype": "complex64"}, "inputs of dtype complex64; expected numbers"),
        ({"dtype": "bool"}, "inputs of dtype bool"),
        ({"dtype": "<U3"}, "inputs of dtype <U3"),
        ({"shape": ()}, r"inputs of shape \[\]"),
        ({"shape": (0, 3)}, r"inputs of shape \[0, 3\]"),
    ],
)
def test_options_and_inputs_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        form(**{"shape": (2, 2), **arguments})


def test_what_is_held_in_memory_is_checked_and_takes_little_of_it():
    held = form((2,), "float64").in_memory(np.array([[1.5, 2.0]]), "x")
    assert held.dtype == np.float32
    assert form((2,), ">f4").in_memory(np.array([[1, 2]], ">f4"), "x").dtype.isnative
    pixels = form((2,), "float32", scale="pixels").in_memory(np.array([[0.0, 255.0]], np.float32), "x")
    assert pixels.dtype == np.uint8
    for values, scale, message in (
        ([[1.0, np.nan]], "auto", "1 values are NaN or infinite, the first in row 0"),
        ([[1.0, 1e300]], "auto", "1 values are NaN or infinite"),
        ([[0.0, 1.0]], "pixels", "expected whole grey values"),
        ([[0.0, 256.0]], "pixels", "expected whole grey values"),
        ([[0.0, np.inf]], "pixels", "1 values are NaN or infinite"),
    ):
        with pytest.raises(UserError, match=message):
            form((2,), "float64", scale=scale).in_memory(np.array(values), "x")


def test_rows_that_were_just_read_are_checked_and_named():
    rows = np.array([70, 8, 9])
    bad = np.zeros([3, 2, 2], np.float32)
    bad[1, 0, 1] = np.inf
    with pytest.raises(UserError, match="^x, row 8: NaN or infinite values"):
        form((2, 2)).check_rows(bad, rows, "x")
    bad[1, 0, 1] = 300
    form((2, 2)).check_rows(bad, rows, "x")
    with pytest.raises(UserError, match="^x, row 8: values outside 0..255"):
        form((2, 2), scale="pixels").check_rows(bad, rows, "x")
