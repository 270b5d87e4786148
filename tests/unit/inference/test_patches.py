from __future__ import annotations

import numpy as np
import pytest

from trainer.inference.patches import Windows


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("strides", "dilation"), [((1, 1), (1, 1)), ((2, 1), (1, 1)), ((1, 1), (2, 2))])
def test_windows_come_a_few_at_a_time_and_none_is_missing(strides, dilation, padding):
    images = np.random.default_rng(0).integers(0, 256, (3, 90, 80, 40), np.uint8)
    windows = Windows((90, 80), (3, 3), strides, dilation, padding)
    height, width = windows.axis(0)[0], windows.axis(1)[0]
    seen = np.zeros((3, height, width), int)
    for some, rows, made in windows.rows(images, 8):
        assert made.nbytes <= 2**20
        assert made.shape[1] == 360
        seen[some, rows] += 1
        np.testing.assert_array_equal(made[0], made.reshape(*seen[some, rows].shape, -1)[0, 0, 0])
    assert (seen == 1).all()


def test_a_row_is_filled_up_with_zeros():
    images = np.full((1, 2, 2, 3), 255, np.uint8)
    ((_, _, made),) = Windows((2, 2), (2, 2), (1, 1), (1, 1), "valid").rows(images, 8)
    np.testing.assert_array_equal(made, [[255] * 12 + [0] * 4])
