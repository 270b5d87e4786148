"""Bad examples are found when the data is opened, and named in one line."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.errors import UserError
from trainer.input.checks import as_pixels, check_examples, is_whole_number

SHAPE = (4, 4, 1)


def make_examples(size=6, dtype=np.float32):
    return np.zeros((size, *SHAPE), dtype), np.arange(size, dtype=np.int64) % 3


def check(inputs, targets):
    check_examples(inputs, targets, input_shape=SHAPE, classes=3, where="tiny.npz")


def message_of(inputs, targets):
    with pytest.raises(UserError) as caught:
        check(inputs, targets)
    message = str(caught.value)
    assert message.startswith("tiny.npz: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, np.float32, np.float64])
def test_good_examples_pass(dtype):
    check(*make_examples(dtype=dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_labels_of_any_integer_dtype_pass(dtype):
    inputs, targets = make_examples()
    check(inputs, targets.astype(dtype))


@pytest.mark.parametrize("value", [3, 200, -1])
def test_a_label_out_of_range_is_named_with_its_row(value):
    inputs, targets = make_examples()
    targets[4], targets[5] = value, value
    assert f"2 labels lie outside 0..2, the first is {value} in row 4" in message_of(inputs, targets)


@pytest.mark.parametrize(
    "targets", [np.zeros(6, np.float32), np.zeros((6, 3), np.int64), np.array(["a"] * 6), np.zeros(6, bool)]
)
def test_labels_that_are_no_class_numbers_are_refused(targets):
    assert f"labels of dtype {targets.dtype}" in message_of(make_examples()[0], targets)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted_and_the_first_row_is_named(value):
    inputs, targets = make_examples()
    inputs[2, 1, 1, 0] = inputs[2, 3, 0, 0] = inputs[5, 0, 0, 0] = value
    assert "3 values are NaN or infinite, the first in row 2" in message_of(inputs, targets)


@pytest.mark.parametrize("dtype", [np.complex64, bool, "U1", object])
def test_inputs_that_are_no_numbers_are_refused(dtype):
    assert "expected real numbers" in message_of(np.zeros((6, *SHAPE), dtype), make_examples()[1])


@pytest.mark.parametrize("shape", [(6, 4, 4), (6, 4, 5, 1), (6, 1, 4, 4), (6,)])
def test_another_input_shape_is_refused(shape):
    found = message_of(np.zeros(shape, np.float32), make_examples()[1])
    assert f"inputs of shape {list(shape[1:])}; expected [4, 4, 1]" in found


def test_unequal_numbers_of_inputs_and_labels_are_refused():
    inputs, targets = make_examples()
    assert "6 inputs but 5 labels" in message_of(inputs, targets[:5])
    assert "6 inputs but 0 labels" in message_of(inputs, np.array(3))


def test_no_examples_are_refused():
    inputs, targets = make_examples()
    assert "no examples" in message_of(inputs[:0], targets[:0])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, np.float16, np.float64])
def test_pixels_keep_their_values_in_any_dtype(dtype):
    values = np.array([[0, 1, 2], [254, 255, 17]])
    found = as_pixels(values.astype(dtype), "tiny.npz")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([0.0, 0.25, 1.0], r"float64 values with fractions within 0\.\.1"),
        ([0.0, 1.0, 1.0], r"float64 whole values within 0\.\.1"),
        ([-1.0, 0.0, 1.0], r"within -1\.\.1"),
        ([0, 256], r"int64 whole values within 0\.\.256"),
        ([-3, 255], r"within -3\.\.255"),
        ([0.0, 100.5], "fractions"),
    ],
)
def test_images_that_are_no_grey_values_are_refused(values, found):
    with pytest.raises(UserError, match=found):
        as_pixels(np.array(values), "tiny.npz")


@pytest.mark.parametrize(("value", "whole"), [(0, True), (-4, True), (True, False), (2.0, False), ("3", False)])
def test_whole_numbers_are_told_from_others(value, whole):
    assert is_whole_number(value) is whole
