from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.attention import dilated_conv
from hooks.attention.dilated_conv import DilatedConv2D, has_dilated_kernels, phase_convolution

NATIVE = has_dilated_kernels((1, 8, 8, 2), (3, 3, 2, 3), (2, 2), "float32")


def make(native: bool, dilation: int, activation: str | None = "relu") -> DilatedConv2D:
    layer = DilatedConv2D(3, 3, dilation_rate=dilation, activation=activation, bias_initializer="ones")
    layer.build((None, 12, 9, 2))
    layer._native = native
    return layer


@pytest.mark.parametrize(
    "native", [pytest.param(True, marks=pytest.mark.skipif(not NATIVE, reason="no kernel")), False]
)
@pytest.mark.parametrize("dilation", [1, 2, 4, 5])
@pytest.mark.parametrize("size", [(12, 9), (3, 13), (1, 2)])
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


@pytest.mark.parametrize("xla", [False, True])
def test_sizes_need_not_be_known_nor_divide_by_the_dilation(xla: bool):
    maps = tf.constant(np.random.default_rng(1).normal(size=(2, 7, 11, 2)), tf.float32)
    kernel = tf.constant(np.random.default_rng(2).normal(size=(3, 5, 2, 3)), tf.float32)
    shape = maps.shape if xla else [None, None, None, 2]
    function = tf.function(
        lambda x: phase_convolution(x, kernel, (2, 3)), [tf.TensorSpec(shape)], autograph=False, jit_compile=xla
    )
    expected = tf.nn.convolution(maps, kernel, 1, "SAME", dilations=(2, 3))
    np.testing.assert_allclose(function(maps), expected, rtol=1e-5, atol=1e-5)


def test_a_device_without_the_kernel_is_found_out(monkeypatch: pytest.MonkeyPatch):
    def missing(*args: object, **options: object) -> tf.Tensor:
        raise tf.errors.UnimplementedError(None, None, "no dilation rates larger than 1")

    monkeypatch.setattr(dilated_conv.tf.nn, "conv2d", missing)
    assert not has_dilated_kernels((1, 5, 5, 1), (3, 3, 1, 1), (3, 3), "float32")


def test_on_a_cpu_double_precision_has_no_kernel_and_trains_all_the_same():
    if not tf.config.list_physical_devices("GPU"):
        assert not has_dilated_kernels((1, 8, 8, 2), (3, 3, 2, 3), (2, 2), "float64")
    layer = DilatedConv2D(3, 3, dilation_rate=2, dtype="float64")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(tf.ones([1, 8, 8, 2], tf.float64))))
    assert all(np.any(each) for each in tape.gradient(loss, [weight.value for weight in layer.trainable_weights]))


def test_the_layer_comes_back_from_its_config():
    layer = make(True, 2)
    copy = keras.layers.deserialize(keras.layers.serialize(layer))
    assert isinstance(copy, DilatedConv2D)
    assert copy.get_config() == layer.get_config()
    assert copy.dilation_rate == (2, 2)
