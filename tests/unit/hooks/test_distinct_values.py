"""How many values an array has, as a whole or by channel."""

from __future__ import annotations

import numpy as np
import pytest

from hooks.quantization.distinct_values import most_values


def test_values_are_counted_over_the_whole_array():
    assert most_values(np.array([[1.0, -1.0], [1.0, -1.0]], np.float32)) == 2
    assert most_values(np.arange(12, dtype=np.float32).reshape(3, 4)) == 12
    assert most_values(np.array([0.0, -0.0], np.float32)) == 1


@pytest.mark.parametrize(("axes", "expected"), [((-1,), 2), ((0,), 3), ((0, 1), 1), ((), 6)])
def test_the_channel_with_most_values_counts(axes: tuple[int, ...], expected: int):
    signs = np.array([[1, -1, 1], [-1, -1, -1], [1, 1, 1]])
    assert most_values((signs * [1.0, 2.0, 3.0]).astype(np.float32), axes) == expected


def test_half_precision_is_counted_exactly():
    values = np.array([1.0, 1.0 + 2**-10, 1.0 + 2**-9], np.float16)
    assert most_values(values) == 3
