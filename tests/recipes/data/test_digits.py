"""The embedded digits: real images, honest splits."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from hookline.recipes.data.digits import digits
from hookline.trainer.input.batches import EvaluationBatches


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
    assert (data.validation.size, data.test.size) == (449, 898)


def test_images_and_labels_are_those_of_scikit_learn_scaled_to_one():
    data = digits()
    batches = EvaluationBatches(data.test, batch_size=359)
    batch = batches.batch(tf.constant(0, tf.int64))
    bunch = load_digits()
    assert batch["inputs"].dtype == tf.float32
    assert batch["inputs"].shape == (359, *data.input_shape)
    np.testing.assert_array_equal(batch["inputs"][..., 0], bunch.images[data.test.indices] / 8 - 1)
    np.testing.assert_array_equal(batch["targets"], bunch.target[data.test.indices])
    assert float(tf.reduce_min(batch["inputs"])) == -1
    assert float(tf.reduce_max(batch["inputs"])) == 1
    assert data.classes == 10
