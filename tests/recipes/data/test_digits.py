"""The embedded digits: real images, scaled to one, in splits that share nothing."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from hookline.recipes.data.digits import digits
from tests.support.batches import whole


def rows_of(data):
    return {split.name: split.indices for split in (data.train, data.validation, data.test)}


def test_splits_cover_the_set_and_share_nothing():
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
