"""Thumbnails: small, with the proportions of the image."""

import numpy as np
import tensorflow as tf

from hookline.trainer.ops.thumbnails import thumbnails


def test_images_fit_into_32_pixels_and_keep_their_proportions():
    for shape, expected in (((32, 20, 3), (32, 20, 3)), ((64, 32, 3), (32, 16, 3)), ((10, 1000, 1), (1, 32, 1))):
        assert thumbnails(tf.zeros([2, *shape])).shape == (2, *expected)


def test_pixels_are_means_of_areas_and_small_images_stay_as_they_are():
    board = np.indices((64, 64)).sum(axis=0) % 2
    images = np.stack([board, np.zeros((64, 64))])[..., np.newaxis].astype(np.uint8)
    small = thumbnails(tf.constant(images)).numpy()
    assert small.dtype == np.float32
    np.testing.assert_allclose(small[0], 0.5)
    np.testing.assert_allclose(small[1], 0.0)
    np.testing.assert_array_equal(thumbnails(tf.constant(images[:, :8, :8])), images[:, :8, :8])
