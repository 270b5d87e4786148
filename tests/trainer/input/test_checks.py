"""Bad examples are found when the data is opened, and named in one line."""

import numpy as np
import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.input.checks import as_pixels, check_examples
from tests.support.refusals import assert_refused

SHAPE = (4, 4, 1)


def message_of(inputs, targets):
    with pytest.raises(UserError) as caught:
        check_examples(inputs, targets, input_shape=SHAPE, classes=3, where="tiny.npz")
    assert str(caught.value).startswith("tiny.npz: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_examples_are_named_with_their_row():
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


def test_pixels_keep_their_values_in_any_dtype_and_others_are_refused():
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
