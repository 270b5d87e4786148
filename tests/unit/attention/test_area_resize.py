"""Resizing by area, against TensorFlow's own and against whole blocks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.attention.resampling import AreaResize, area_resize

MAPS = np.random.default_rng(0).uniform(size=(2, 12, 10, 3)).astype(np.float32)


@pytest.mark.parametrize("size", [(6, 5), (5, 7), (24, 30), (1, 1)])
def test_cells_are_means_over_the_area_that_they_cover(size):
    resized = tf.function(lambda maps: area_resize(maps, size), jit_compile=True)(MAPS)
    np.testing.assert_allclose(resized, tf.image.resize(MAPS, size, method="area"), rtol=1e-5)
    np.testing.assert_allclose(tf.reduce_mean(resized), MAPS.mean(), rtol=1e-5)  # no mass is lost


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
