"""Masks as pictures."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hooks.masking.pictures import LARGEST, mask_picture, mask_pictures


def test_small_mask_is_shown_entry_by_entry() -> None:
    mask = np.array([[True, False, True], [False, False, True]])
    np.testing.assert_array_equal(mask_picture(mask)[..., 0], mask.astype(np.float32))


def test_axes_of_a_convolution_before_the_last_become_rows() -> None:
    mask = np.random.default_rng(0).random((3, 3, 2, 5)) < 0.5
    picture = mask_picture(mask)
    assert picture.shape == (18, 5, 1)
    np.testing.assert_array_equal(picture[..., 0], mask.reshape(18, 5))


@pytest.mark.parametrize("shape", [(2000, 3), (3, 1025), (1024, 1024), (513, 7), (4,)])
def test_large_mask_is_shrunk_to_the_share_that_is_kept(shape: tuple[int, ...]) -> None:
    mask = np.random.default_rng(0).random(shape) < 0.3
    picture = mask_picture(mask)
    assert max(picture.shape[:2]) <= LARGEST
    assert picture.min() >= 0.0
    assert picture.max() <= 1.0
    assert picture.mean() == pytest.approx(mask.mean(), abs=0.02)


def test_uneven_last_group_is_a_mean_of_its_own() -> None:
    picture = mask_picture(np.ones((1025, 1), bool))
    np.testing.assert_array_equal(picture, np.ones_like(picture))


def test_pictures_are_named_after_their_variables() -> None:
    pictures = mask_pictures({"dense/kernel": tf.Variable([[True, False]])})
    assert list(pictures) == ["mask/dense/kernel"]
    assert pictures["mask/dense/kernel"].shape == (1, 2, 1)
