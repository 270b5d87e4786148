"""Resizing by area, against TensorFlow's own and against whole blocks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hooks.attention.area_resize import AreaResize, area_resize, area_weights

MAPS = np.random.default_rng(0).uniform(size=(2, 12, 10, 3)).astype(np.float32)


@pytest.mark.parametrize("size", [(12, 10), (6, 5), (5, 7), (24, 30), (1, 1)])
@pytest.mark.parametrize("jit", [False, True])
def test_cells_are_means_over_the_area_that_they_cover(size, jit: bool):
    resized = tf.function(lambda maps: area_resize(maps, size), jit_compile=jit)(MAPS)
    np.testing.assert_allclose(resized, tf.image.resize(MAPS, size, method="area"), rtol=1e-5)
    np.testing.assert_allclose(tf.reduce_mean(resized), MAPS.mean(), rtol=1e-5)  # no mass is lost


def test_whole_blocks_are_averaged():
    blocks = MAPS.reshape(2, 6, 2, 5, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(area_resize(MAPS, (6, 5)), blocks, rtol=1e-6)


def test_each_cell_is_an_average():
    for given, wanted in [(60, 28), (28, 60), (7, 7), (5, 1)]:
        weights = area_weights(given, wanted)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0)
        np.testing.assert_allclose(weights.sum(axis=0), wanted / given)
    np.testing.assert_array_equal(area_weights(4, 4), np.eye(4))


def test_the_layer_has_the_same_values_a_gradient_and_a_config():
    layer = AreaResize(5, 4, name="resize")
    maps = tf.constant(MAPS)
    with tf.GradientTape() as tape:
        tape.watch(maps)
        resized = layer(maps)
    np.testing.assert_allclose(resized, area_resize(maps, (5, 4)))
    np.testing.assert_allclose(tf.reduce_sum(tape.gradient(resized, maps)), resized.shape.num_elements(), rtol=1e-5)
    assert layer.compute_output_shape((None, 12, 10, 3)) == (None, 5, 4, 3)
    assert AreaResize.from_config(layer.get_config()).get_config() == layer.get_config()
    assert area_resize(tf.cast(maps, tf.bfloat16), (5, 4)).dtype == tf.bfloat16
