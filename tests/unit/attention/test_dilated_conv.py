from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.attention.resampling import DilatedConv2D, has_dilated_kernels

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
