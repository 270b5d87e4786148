"""Random rectangles: where they lie, how large they are, and that the border cuts and never shifts them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.recipes.augment.mixing import random_rectangles
from hookline.trainer.input.order import example_seeds, whole_numbers

COUNT = 40


def seeds(step: int) -> tf.Tensor:
    return example_seeds(0, tf.constant(step, tf.int64), tf.range(COUNT, dtype=tf.int64))


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_each_covers_its_extent_around_its_middle(height, width, step):
    drawn = np.random.default_rng(step)
    tall, wide = (drawn.integers(0, size + 3, COUNT).astype(np.int32) for size in (height, width))
    found = random_rectangles(seeds(step), tf.constant(tall), tf.constant(wide), height, width).numpy()
    assert found.shape == (COUNT, height, width, 1)
    rows = whole_numbers(seeds(step), "row", 0, height - 1).numpy()
    columns = whole_numbers(seeds(step), "column", 0, width - 1).numpy()
    for mask, row, column, high, broad in zip(found[..., 0], rows, columns, tall, wide, strict=True):
        expected = np.zeros((height, width), bool)
        top, left = row - high // 2, column - broad // 2
        expected[max(top, 0) : max(top + high, 0), max(left, 0) : max(left + broad, 0)] = True
        np.testing.assert_array_equal(mask, expected)
