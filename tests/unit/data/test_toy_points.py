"""Points of the plane: what they are, and that they are the same every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data.points import toy_points
from hookline.trainer.errors import UserError


def rows(data: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    chosen = getattr(data, split)
    batch = chosen.source.gather(tf.constant(chosen.indices))
    return batch["inputs"].numpy(), batch["targets"].numpy()


def test_points_lie_on_the_side_of_the_line_that_their_class_says() -> None:
    data = toy_points()
    sizes = {}
    for split in ("train", "validation", "test"):
        points, labels = rows(data, split)
        assert points.dtype == np.float32
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, points[:, 1] - points[:, 0] > 0.5)
        assert 0.55 < labels.mean() < 0.72
        sizes[split] = len(points)
    assert sizes == {"train": 600, "validation": 200, "test": 200}
    points, _ = rows(data, "train")
    np.testing.assert_array_equal(rows(toy_points(seed=0), "train")[0], points)
    assert not np.array_equal(rows(toy_points(seed=1), "train")[0], points)
    with pytest.raises(UserError, match="examples 3"):
        toy_points(examples=3)
    np.testing.assert_allclose(points.mean(axis=0), [1, 2], atol=0.15)
    np.testing.assert_allclose(points.std(axis=0), [1, 1], atol=0.15)
    assert (data.input_shape, data.classes) == ((2,), 2)
