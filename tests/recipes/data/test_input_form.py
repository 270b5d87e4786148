"""Stored inputs are converted to inputs of a network, by options that are checked."""

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data.input_form import HostRows, check_rows, in_memory, input_form, transform_of
from hookline.trainer.errors import UserError
from hookline.trainer.input.batches import EvaluationBatches, TrainingBatches
from hookline.trainer.input.data import Split
from hookline.trainer.step.stage import python_errors
from tests.support.batches import assert_same_bits, eager_batches, step_of, traced_batches
from tests.support.refusals import assert_refused


def form(shape, dtype="float32", *, scale="auto", channels="auto"):
    return input_form(shape, np.dtype(dtype), {"scale": scale, "channels": channels}, "x.npy")


def made(stored, **options):
    found = form(stored.shape[1:], stored.dtype, **options)
    inputs = transform_of(found)({"inputs": tf.constant(stored), "targets": tf.zeros([1])})["inputs"]
    assert inputs.dtype == tf.float32
    assert inputs.shape[1:] == found.shape
    return inputs.numpy()


def test_axes_follow_channels_option():
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


def test_uint8_is_scaled_as_pixels_and_other_dtypes_only_on_request():
    stored, centered, unit = [[0, 51, 255]], [[-1, -0.6, 1]], [[0, 0.2, 1]]
    for dtype, scale, expected in (
        ("uint8", "auto", centered),
        ("uint8", "unit", unit),
        ("uint8", "none", stored),
        ("float32", "auto", stored),
        ("int32", "auto", stored),
        ("int64", "pixels", centered),
        ("float16", "unit", unit),
    ):
        np.testing.assert_allclose(made(np.array(stored, dtype), scale=scale), expected, atol=1e-6)


def test_arrays_in_memory_are_checked_and_stored_compactly():
    assert in_memory(form((2,), "float64"), np.array([[1.5, 2.0]]), "x").dtype == np.float32
    assert in_memory(form((2,), ">f4"), np.array([[1, 2]], ">f4"), "x").dtype.isnative
    pixels = in_memory(form((2,), "float32", scale="pixels"), np.array([[0.0, 255.0]], np.float32), "x")
    assert pixels.dtype == np.uint8
    for values, scale, message in (
        ([[1.0, np.nan]], "auto", "1 values are NaN or infinite, the first in row 0"),
        ([[1.0, 1e300]], "auto", "1 values are NaN or infinite"),
        ([[0.0, 1.0]], "pixels", "expected whole gray values"),
        ([[0.0, 256.0]], "pixels", "expected whole gray values"),
    ):
        assert_refused(message, in_memory, form((2,), "float64", scale=scale), np.array(values), "x")
    bits = np.zeros([2, 3, 3], np.uint8)
    bits[1, 1] = 1
    assert_refused("data.scale=none to keep them", in_memory, form((3, 3), "uint8"), bits, "x")
    assert in_memory(form((3, 3), "uint8", scale="none"), bits, "x") is bits
    for bad, scale in ((np.inf, "auto"), (300.0, "pixels")):  # rows that were just read
        read = np.zeros([3, 2, 2], np.float32)
        read[1, 0, 1] = bad
        assert_refused("^x, row 8: ", check_rows, form((2, 2), scale=scale), read, np.array([70, 8, 9]), "x")


SIZE = 40
PIXELS = np.random.default_rng(0).integers(0, 256, (SIZE, 4, 4, 1), np.uint8)
LABELS = np.arange(SIZE, dtype=np.int64) % 3


def make_split(fail=None):
    def read(rows):
        if fail in rows.tolist():
            raise UserError(f"Row {fail} cannot be read. Mend it.")
        return {"inputs": PIXELS[rows], "box": rows.astype(np.float32) * 2}

    specs = {"inputs": tf.TensorSpec([4, 4, 1], tf.uint8), "box": tf.TensorSpec([], tf.float32)}
    source = HostRows(read, specs, LABELS, lambda b: {**b, "inputs": tf.cast(b["inputs"], tf.float32) * (1.0 / 255.0)})
    return Split("train", source, np.arange(SIZE, dtype=np.int64))


def test_eager_traced_and_queued_batches_have_same_bits():
    batches = TrainingBatches(make_split(), batch_size=8, seed=3)
    eager = eager_batches(batches, 0, 6)
    np.testing.assert_allclose(eager["inputs"], PIXELS[eager["index"]] / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(eager["box"], eager["index"] * 2)
    np.testing.assert_array_equal(eager["targets"], LABELS[eager["index"]])
    assert_same_bits(traced_batches(batches, 0, 6), eager)
    iterator = iter(batches.queued(2))
    prefetched = [next(iterator) for _ in range(4)]
    assert_same_bits({key: np.stack([each[key] for each in prefetched]) for key in eager}, eager_batches(batches, 2, 6))


def test_read_error_is_unchanged_in_eager_traced_and_queued_batches():
    split, message = make_split(fail=17), "^Row 17 cannot be read. Mend it.$"
    batches = TrainingBatches(split, batch_size=SIZE, seed=0)
    assert_refused(message, batches.batch, step_of(0))
    with pytest.raises(UserError, match=message), python_errors():
        next(iter(batches.queued(0)))
    evaluation = EvaluationBatches(split, batch_size=8)
    with pytest.raises(UserError, match=message), python_errors():
        tf.function(evaluation.batch, autograph=False)(step_of(2))
    assert tf.function(evaluation.batch, autograph=False)(step_of(1))["inputs"].shape == (8, 4, 4, 1)
