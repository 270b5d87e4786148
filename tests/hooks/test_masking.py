"""Masks as pictures."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.masking import LARGEST, mask_picture, mask_pictures


def test_masks_are_shown_by_entry_and_large_ones_by_share() -> None:
    mask = np.random.default_rng(0).random((3, 3, 2, 5)) < 0.5
    np.testing.assert_array_equal(mask_picture(mask)[..., 0], mask.reshape(18, 5).astype(np.float32))
    for shape in ((3, 1025), (1024, 1024), (4,)):
        mask = np.random.default_rng(0).random(shape) < 0.3
        picture = mask_picture(mask)
        assert max(picture.shape[:2]) <= LARGEST
        assert picture.mean() == pytest.approx(mask.mean(), abs=0.02)
    np.testing.assert_array_equal(mask_picture(np.ones((1025, 1), bool)), 1.0)  # the uneven last group is a mean too
    assert mask_pictures({"dense/kernel": tf.Variable([[True, False]])})["mask/dense/kernel"].shape == (1, 2, 1)
