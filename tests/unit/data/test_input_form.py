"""Stored inputs become what a network takes, by options that are checked."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data.input_form import input_form
from hookline.trainer.errors import UserError


def form(shape, dtype="float32", *, scale="auto", channels="auto"):
    return input_form(shape, np.dtype(dtype), scale=scale, channels=channels, where="x.npy")


def made(stored, **options):
    found = form(stored.shape[1:], stored.dtype, **options)
    inputs = found.transform({"inputs": tf.constant(stored), "targets": tf.zeros([1])})["inputs"]
    assert inputs.dtype == tf.float32
    assert inputs.shape[1:] == found.shape
    return inputs.numpy()


def test_the_axes_are_those_that_were_asked_for():
    for shape, channels, expected in (
        ((5,), "auto", (5,)),
        ((4, 6), "auto", (4, 6, 1)),
        ((4, 6), "none", (4, 6)),
        ((4, 6, 3), "auto", (4, 6, 3)),
        ((3, 4, 6), "first", (4, 6, 3)),
        ((1, 4, 6), "last", (1, 4, 6)),
        ((3, 4, 6), "none", (3, 4, 6)),
        ((2, 3, 4, 6), "first", (3, 4, 6, 2)),
        ((3, 5, 3), "auto", (3, 5, 3)),
    ):
        stored = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
        found = made(stored, channels=channels)
        assert found.shape == (2, *expected)
        moved = np.moveaxis(stored, 1, -1) if channels == "first" else stored.reshape(2, *expected)
        np.testing.assert_array_equal(found, moved)


def test_bytes_are_pixels_and_other_values_are_kept_unless_told_otherwise():
    for dtype, scale, pixels in (
        ("uint8", "auto", True),
        ("uint8", "none", False),
        ("float32", "auto", False),
        ("int32", "auto", False),
        ("int64", "pixels", True),
        ("float16", "pixels", True),
    ):
        stored = np.array([[0, 51, 255]], dtype)
        np.testing.assert_allclose(made(stored, scale=scale), [[-1, -0.6, 1]] if pixels else stored, atol=1e-6)


def test_what_is_held_in_memory_is_checked_and_takes_little_of_it():
    assert form((2,), "float64").in_memory(np.array([[1.5, 2.0]]), "x").dtype == np.float32
    assert form((2,), ">f4").in_memory(np.array([[1, 2]], ">f4"), "x").dtype.isnative
    pixels = form((2,), "float32", scale="pixels").in_memory(np.array([[0.0, 255.0]], np.float32), "x")
    assert pixels.dtype == np.uint8
    for values, scale, message in (
        ([[1.0, np.nan]], "auto", "1 values are NaN or infinite, the first in row 0"),
        ([[1.0, 1e300]], "auto", "1 values are NaN or infinite"),
        ([[0.0, 1.0]], "pixels", "expected whole grey values"),
        ([[0.0, 256.0]], "pixels", "expected whole grey values"),
    ):
        with pytest.raises(UserError, match=message):
            form((2,), "float64", scale=scale).in_memory(np.array(values), "x")
    for bad, scale in ((np.inf, "auto"), (300.0, "pixels")):  # rows that were just read
        read = np.zeros([3, 2, 2], np.float32)
        read[1, 0, 1] = bad
        with pytest.raises(UserError, match="^x, row 8: "):
            form((2, 2), scale=scale).check_rows(read, np.array([70, 8, 9]), "x")
