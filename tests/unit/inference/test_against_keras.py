"""Every operation of a packed network gives what Keras's layer gives."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.packed_graphs import GraphBuilder
from trainer.inference.activations import ACTIVATIONS
from trainer.inference.engine import Model
from trainer.ops.dorefa import dorefa
from trainer.ops.ste_sign import ste_sign
from trainer.ops.ste_tern import ste_tern

SHAPE = (7, 6, 5)


def compare(builder: GraphBuilder, layer, shape: tuple[int, ...] = SHAPE, *, exact: bool = False) -> None:
    """Compare a model with a layer of Keras on values that also lie at 0 and beyond -3 and +3."""
    inputs = np.random.default_rng(0).normal(scale=2, size=(3, *shape)).astype(np.float32)
    inputs.reshape(-1)[:2] = 0.0, -0.0
    expected = keras.ops.convert_to_numpy(layer(tf.constant(inputs)))
    found = Model(builder.graph(), builder.tensors)(inputs)
    assert found.shape == expected.shape
    tolerance = 0 if exact else 2e-5
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def of(op: str, size: tuple[int, ...] = SHAPE, /, **fields) -> GraphBuilder:
    builder = GraphBuilder(size)
    builder.add(op, **fields)
    return builder


def with_kernel(layer: keras.layers.Layer, builder: GraphBuilder, op: str, **fields) -> keras.layers.Layer:
    layer.build((None, *builder.shape))
    kernel = builder.floats(tuple(layer.kernel.shape))
    bias = builder.floats(tuple(layer.bias.shape))
    layer.set_weights([builder.decoded[kernel.tensor], builder.decoded[bias.tensor]])
    builder.add(op, kernel=kernel, bias=bias, **fields)
    return layer


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("strides", "dilation"), [((1, 1), (1, 1)), ((2, 2), (1, 1)), ((1, 1), (2, 3))])
@pytest.mark.parametrize("op", ["conv2d", "depthwise_conv2d"])
def test_convolutions(op, strides, dilation, padding):
    builder = GraphBuilder(SHAPE)
    options = {"strides": strides, "dilation_rate": dilation, "padding": padding}
    layer = (
        keras.layers.Conv2D(4, (3, 2), **options)
        if op == "conv2d"
        else keras.layers.DepthwiseConv2D((3, 2), depth_multiplier=2, **options)
    )
    compare(builder, with_kernel(layer, builder, op, strides=strides, dilation=dilation, padding=padding))


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_a_binary_convolution_sums_as_keras_does(padding, strides):
    builder = GraphBuilder(SHAPE)
    builder.add("sign")
    kernel = builder.signs((3, 3, 5, 9))
    builder.add("conv2d", kernel=kernel, strides=(strides, strides), padding=padding)
    layer = keras.layers.Conv2D(9, 3, strides=strides, padding=padding, use_bias=False)
    layer.build((None, *SHAPE))
    layer.set_weights([builder.decoded[kernel.tensor]])
    compare(builder, lambda x: layer(ste_sign(x)), exact=True)


@pytest.mark.parametrize("shape", [(9,), (4, 9)])
def test_dense_layers(shape):
    builder = GraphBuilder(shape)
    compare(builder, with_kernel(keras.layers.Dense(6), builder, "dense"), shape)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("pool_size", "strides"), [((2, 2), (2, 2)), ((3, 2), (1, 2)), ((2, 3), (3, 1))])
def test_pooling(pool_size, strides, padding):
    options = {"pool_size": pool_size, "strides": strides, "padding": padding}
    compare(of("max_pool2d", **options), keras.layers.MaxPooling2D(**options))
    compare(of("average_pool2d", **options), keras.layers.AveragePooling2D(**options))


@pytest.mark.parametrize(
    ("op", "fields", "layer"),
    [
        ("global_max_pool2d", {}, keras.layers.GlobalMaxPooling2D()),
        ("global_average_pool2d", {}, keras.layers.GlobalAveragePooling2D()),
        ("flatten", {}, keras.layers.Flatten()),
        ("reshape", {"shape": (5, 42)}, keras.layers.Reshape((5, 42))),
        ("zero_pad2d", {"padding": ((1, 2), (0, 3))}, keras.layers.ZeroPadding2D(((1, 2), (0, 3)))),
        ("upsample2d", {"size": (2, 3)}, keras.layers.UpSampling2D((2, 3))),
        ("rescale", {"scale": 0.25, "offset": -1.5}, keras.layers.Rescaling(0.25, -1.5)),
        ("sign", {}, ste_sign),
        ("ternary", {"threshold": 0.05}, ste_tern),
        *(("round", {"bits": bits}, lambda x, bits=bits: dorefa(x, k_bit=bits)) for bits in (1, 2, 8)),
    ],
)
def test_operations_without_weights(op, fields, layer):
    compare(of(op, **fields), layer)


@pytest.mark.parametrize("function", sorted(ACTIVATIONS))
def test_activations(function):
    compare(of("activation", function=function), keras.activations.get(function))


@pytest.mark.parametrize(("function", "name"), [("leaky_relu", "negative_slope"), ("elu", "alpha")])
def test_slopes(function, name):
    layer = getattr(keras.activations, function)
    compare(of("activation", function=function, slope=0.3), lambda x: layer(x, **{name: 0.3}))


@pytest.mark.parametrize("function", sorted(ACTIVATIONS))
def test_activations_of_large_values_are_finite(function):
    builder = of("activation", (2,), function=function)
    inputs = np.array([[-80.0, 80.0], [80.0, -80.0]], np.float32)
    expected = keras.ops.convert_to_numpy(keras.activations.get(function)(tf.constant(inputs)))
    np.testing.assert_allclose(Model(builder.graph(), builder.tensors)(inputs), expected, rtol=1e-5, atol=1e-30)


def test_a_batch_norm_is_a_scale_and_a_shift():
    builder = GraphBuilder(SHAPE)
    layer = keras.layers.BatchNormalization()
    layer.build((None, *SHAPE))
    random = np.random.default_rng(1)
    gamma, beta, mean, variance = weights = [random.uniform(0.5, 2, 5).astype(np.float32) for _ in range(4)]
    layer.set_weights(weights)
    scale = gamma / np.sqrt(variance + np.float32(1e-3))
    names = [builder.tensor(each.astype(np.float32)) for each in (scale, beta - mean * scale)]
    builder.add("scale_shift", scale=names[0], shift=names[1])
    compare(builder, lambda x: layer(x, training=False))


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "concatenate"])
def test_joins(op):
    builder = GraphBuilder(SHAPE)
    signs = builder.add("sign")
    builder.add(op, inputs=("image", signs), **({"axis": -1} if op == "concatenate" else {}))
    layer = getattr(keras.layers, op.capitalize())()
    compare(builder, lambda x: layer([x, ste_sign(x)]))
