"""Resizing by area, against TensorFlow's own and against whole blocks."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.attention.resampling import AreaResize, DilatedConv2D, area_resize, has_dilated_kernels

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


NATIVE = has_dilated_kernels((1, 8, 8, 2), (3, 3, 2, 3), (2, 2), "float32")


def make(native: bool, dilation: int, activation: str | None = "relu") -> DilatedConv2D:
    layer = DilatedConv2D(3, 3, dilation_rate=dilation, activation=activation, bias_initializer="ones")
    layer.build((None, 12, 9, 2))
    layer._native = native
    return layer


@pytest.mark.parametrize(
    "native", [pytest.param(True, marks=pytest.mark.skipif(not NATIVE, reason="no kernel")), False]
)
@pytest.mark.parametrize(("dilation", "size"), [(1, (12, 9)), (2, (3, 13)), (5, (12, 9)), (4, (1, 2))])
def test_values_and_gradients_are_those_of_keras(native: bool, dilation: int, size: tuple[int, int]):
    layer = make(native, dilation)
    plain = keras.layers.Conv2D(3, 3, padding="same", dilation_rate=dilation, activation="relu")
    plain.build((None, 12, 9, 2))
    plain.set_weights(layer.get_weights())
    maps = tf.constant(np.random.default_rng(0).normal(size=(4, *size, 2)), tf.float32)

    def all_of(each: keras.layers.Layer) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(maps)
            outputs = each(maps)
            loss = tf.reduce_sum(tf.sin(outputs))
        return [outputs, *tape.gradient(loss, [maps, *(weight.value for weight in each.trainable_weights)])]

    for found, expected in zip(all_of(layer), all_of(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
