"""Sources gather transformed rows, splits are disjoint, and invalid examples are refused."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.input.data import ArraySource, Data, Split, as_pixels, check_examples
from tests.support.refusals import assert_refused, refusal


def halved(batch):
    return {**batch, "inputs": tf.cast(batch["inputs"], tf.float32) / 2.0}


def make_source(size=300):
    pixels = np.arange(size * 4, dtype=np.uint64).reshape(size, 2, 2).astype(np.uint8)
    return ArraySource({"inputs": pixels, "targets": np.arange(size, dtype=np.int64)}, halved), pixels


def test_source_gathers_transformed_rows_and_reports_its_raw_size():
    source, pixels = make_source()
    assert (source.size, source.bytes) == (300, pixels.nbytes + 300 * 8)
    rows = np.array([7, 0, 299, 7], np.int64)
    batch = source.gather(tf.constant(rows))
    assert set(batch) == {"inputs", "targets"}
    assert batch["inputs"].dtype == tf.float32
    np.testing.assert_array_equal(batch["inputs"], pixels[rows] / 2.0)
    np.testing.assert_array_equal(batch["targets"], rows)
    made = []
    tf.function(lambda: made.append(make_source()[0]) or tf.constant(0))()  # the source outlives the trace
    np.testing.assert_array_equal(made[0].gather(tf.constant([5], tf.int64))["targets"], [5])


def test_mismatched_arrays_and_invalid_targets_are_refused():
    for arrays, found in (
        ({"inputs": np.zeros((3, 1)), "targets": np.zeros(2)}, "inputs: 3, targets: 2"),
        ({"inputs": np.zeros((3, 1))}, "targets: none"),
        ({"inputs": np.zeros((3, 1)), "targets": np.zeros(3, np.float32)}, "float32"),
        ({"inputs": np.zeros((3, 1)), "targets": np.zeros((3, 10), np.int64)}, "int64 of shape .3, 10."),
    ):
        with pytest.raises(UserError, match=found):
            _ = ArraySource(arrays, halved).labels


SHAPE = (4, 4, 1)


def message_of(inputs, targets):
    found = refusal(check_examples, inputs, targets, input_shape=SHAPE, classes=3, where="tiny.npz")
    assert found.startswith("tiny.npz: ")
    return found


def test_invalid_examples_are_reported_with_their_row():
    inputs, targets = (np.zeros((6, *SHAPE), np.float32), np.arange(6, dtype=np.int64) % 3)
    for value in (3, -1):
        wrong = targets.copy()
        wrong[4:] = value
        assert f"2 labels lie outside 0..2, the first is {value} in row 4" in message_of(inputs, wrong)
    for value in (np.nan, -np.inf):
        wrong = inputs.copy()
        wrong[2, 1, 1, 0] = wrong[2, 3, 0, 0] = wrong[5, 0, 0, 0] = value
        assert "3 values are NaN or infinite, the first in row 2" in message_of(wrong, targets)
    for labels in (np.zeros(6, np.float32), np.zeros((6, 3), np.int64), np.zeros(6, bool)):
        assert f"labels of dtype {labels.dtype}" in message_of(inputs, labels)
    for dtype in (np.complex64, bool, object):
        assert "expected real numbers" in message_of(np.zeros((6, *SHAPE), dtype), targets)
    for shape in ((6, 4, 4), (6, 1, 4, 4)):
        assert f"inputs of shape {list(shape[1:])}" in message_of(np.zeros(shape, np.float32), targets)
    assert "6 inputs but 5 labels" in message_of(inputs, targets[:5])
    assert "no examples" in message_of(inputs[:0], targets[:0])


def test_pixels_of_any_dtype_become_uint8_and_other_values_are_refused():
    values = np.array([[0, 1, 2], [254, 255, 17]])
    for dtype in (np.uint8, np.int64, np.float16):
        found = as_pixels(values.astype(dtype), "tiny.npz")
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, values)
    for wrong, message in (
        ([0.0, 0.25, 1.0], "fractions"),
        ([0.0, 1.0, 1.0], r"within 0\.\.1"),
        ([0, 256], r"within 0\.\.256"),
        ([-3, 255], r"within -3\.\.255"),
    ):
        assert_refused(message, as_pixels, np.array(wrong), "tiny.npz")


def source_of(targets):
    targets = np.array(targets)
    return ArraySource({"inputs": np.zeros((len(targets), 1)), "targets": targets}, lambda batch: batch)


def make_data(targets=(0, 1, 2), *, rows=((0,), (1,), (2,)), **options):
    source = source_of(targets)
    names = ("train", "validation", "test")
    splits = {name: Split(name, source, np.array(each, np.int64)) for name, each in zip(names, rows, strict=True)}
    return Data("tiny", **splits, input_shape=(1,), classes=3, **options)


def test_invalid_split_rows_are_refused():
    for indices, message in (
        (np.array([], np.int64), "empty"),
        (np.array([0, 1], np.int32), "int32"),
        (np.array([0, 20], np.int64), r"0\.\.20; expected rows within 0\.\.19"),
        (np.array([4, 4, 5, 4], np.int64), "repeats 2 rows"),
    ):
        assert_refused(message, Split, "train", source_of([0] * 20), indices)


def test_splits_that_share_examples_are_refused():
    for first, second in itertools.combinations(range(3), 2):
        rows = [[2 * place, 2 * place + 1] for place in range(3)]
        rows[second].append(rows[first][0])
        names = [("train", "validation", "test")[place] for place in (first, second)]
        assert_refused(f"'{names[0]}' and '{names[1]}' of data 'tiny' share 1 examples", make_data, [0] * 6, rows=rows)
    one, other = source_of([0] * 6), source_of([0] * 6)  # the same rows of two sources do not overlap
    splits = [Split(name, one, np.array([row])) for row, name in enumerate(("train", "validation"))]
    assert Data("tiny", *splits, Split("test", other, np.array([0])), input_shape=(1,), classes=2).test.size == 1


def test_names_and_labels_that_do_not_fit_the_classes_are_refused():
    assert make_data(class_names=("ant", "bee", "cat")).class_names == ("ant", "bee", "cat")
    for options, message in (
        ({"class_names": ("ant", "bee", "bee")}, "2 different class names for 3"),
        ({"targets": (0, 1, 3)}, "'tiny', test: 1 labels lie outside 0..2, the first is 3 in row 2"),
        ({"targets": (0, -1, 2)}, "'tiny', validation: 1 labels lie outside 0..2, the first is -1 in row 1"),
        ({"targets": (0.0, 1.0, 2.0)}, "float64"),
    ):
        assert_refused(message, make_data, **options)
