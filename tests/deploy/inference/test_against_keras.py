"""Operations of a packed network give what Keras gives; `test_keras_graph.py` has those of layers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.inference.engine import Model
from hookline.deploy.inference.graph import ACTIVATIONS
from hookline.trainer.ops.estimators import dorefa, ste_sign, ste_tern
from tests.support.packed_graphs import GraphBuilder

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


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_binary_and_depthwise_convolutions(padding):
    for strides in (1, 2):
        builder = GraphBuilder(SHAPE)
        builder.add("sign")
        kernel = builder.signs((3, 3, 5, 9))
        builder.add("conv2d", kernel=kernel, strides=(strides, strides), padding=padding)
        layer = keras.layers.Conv2D(9, 3, strides=strides, padding=padding, use_bias=False)
        layer.build((None, *SHAPE))
        layer.set_weights([builder.decoded[kernel.tensor]])
        compare(builder, lambda x, layer=layer: layer(ste_sign(x)), exact=True)
    for options in ({"strides": 2}, {"dilation_rate": (2, 3)}):
        builder = GraphBuilder(SHAPE)
        layer = keras.layers.DepthwiseConv2D((3, 2), depth_multiplier=2, padding=padding, **options)
        layer.build((None, *SHAPE))
        kernel, bias = builder.floats(tuple(layer.kernel.shape)), builder.floats(tuple(layer.bias.shape))
        layer.set_weights([builder.decoded[kernel.tensor], builder.decoded[bias.tensor]])
        fields = {"strides": layer.strides, "dilation": layer.dilation_rate, "padding": padding}
        builder.add("depthwise_conv2d", kernel=kernel, bias=bias, **fields)
        compare(builder, layer)


@pytest.mark.parametrize(
    ("op", "fields", "layer"),
    [
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
    builder = of("activation", (2,), function=function)
    inputs = np.array([[-80.0, 80.0], [80.0, -80.0]], np.float32)  # finite, too
    expected = keras.ops.convert_to_numpy(keras.activations.get(function)(tf.constant(inputs)))
    np.testing.assert_allclose(Model(builder.graph(), builder.tensors)(inputs), expected, rtol=1e-5, atol=1e-30)
    if name := {"leaky_relu": "negative_slope", "elu": "alpha"}.get(function):
        layer = getattr(keras.activations, function)
        compare(of("activation", function=function, slope=0.3), lambda x: layer(x, **{name: 0.3}))
