"""Data that needs no file: rings, grids and lines of points, and the embedded digits, in splits that share nothing."""

import numpy as np
from sklearn.datasets import load_digits

from hookline.recipes.data.digits import digits
from hookline.recipes.data.points import grid, ring, toy_points
from tests.support.batches import whole


def test_ring_and_grid_match_literature():
    data = ring()
    assert (data.name, data.classes, data.input_shape, data.deviation) == ("ring", 8, (2,), 0.01)
    np.testing.assert_allclose(np.linalg.norm(data.centers, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(data.centers[[0, 2]], [[1, 0], [0, 1]], atol=1e-6)
    neighbours = np.linalg.norm(data.centers - np.roll(data.centers, 1, axis=0), axis=1)
    np.testing.assert_allclose(neighbours, 2 * np.sin(np.pi / 8), rtol=1e-5)
    assert [getattr(data, split).size for split in ("train", "validation", "test")] == [40_000, 5_000, 5_000]
    data = grid()
    assert (data.name, data.classes, data.input_shape, data.deviation) == ("grid", 25, (2,), 0.0125)
    expected = {(x, y) for x in (-1, -0.5, 0, 0.5, 1) for y in (-1, -0.5, 0, 0.5, 1)}
    assert {tuple(center) for center in data.centers.tolist()} == expected


def test_class_of_toy_points_is_their_side_of_the_line() -> None:
    data = toy_points()
    sizes = {}
    for split in ("train", "validation", "test"):
        points, labels = map(whole(getattr(data, split)).get, ("inputs", "targets"))
        np.testing.assert_array_equal(labels, points[:, 1] - points[:, 0] > 0.5)
        assert 0.55 < labels.mean() < 0.72
        sizes[split] = len(points)
    assert sizes == {"train": 600, "validation": 200, "test": 200}
    points = whole(data.train)["inputs"]
    np.testing.assert_array_equal(whole(toy_points(seed=0).train)["inputs"], points)
    assert not np.array_equal(whole(toy_points(seed=1).train)["inputs"], points)
    np.testing.assert_allclose(points.mean(axis=0), [1, 2], atol=0.15)
    np.testing.assert_allclose(points.std(axis=0), [1, 1], atol=0.15)


def rows_of(data):
    return {split.name: split.indices for split in (data.train, data.validation, data.test)}


def test_splits_of_digits_cover_the_set_and_share_nothing():
    rows = rows_of(digits())
    assert {name: part.size for name, part in rows.items()} == {"train": 1258, "validation": 180, "test": 359}
    np.testing.assert_array_equal(np.sort(np.concatenate(list(rows.values()))), np.arange(1797))
    labels = load_digits().target
    share = np.bincount(labels) / labels.size
    for part in rows.values():
        np.testing.assert_allclose(np.bincount(labels[part]), share * part.size, atol=2)
    again, other = rows_of(digits(seed=0)), rows_of(digits(seed=1))
    assert all(np.array_equal(rows[name], again[name]) for name in rows)
    assert not np.array_equal(rows["test"], other["test"])
    data = digits(validation_fraction=0.25, test_fraction=0.5)
    assert (data.validation.size, data.test.size, data.input_shape, data.classes) == (449, 898, (8, 8, 1), 10)
    batch = whole(data.test)
    np.testing.assert_array_equal(batch["inputs"][..., 0], load_digits().images[data.test.indices] / 8 - 1)
    np.testing.assert_array_equal(batch["targets"], labels[data.test.indices])
