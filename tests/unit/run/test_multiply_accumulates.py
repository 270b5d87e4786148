"""Multiply-accumulates: counted layers against sums over ones, which count themselves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from hookline.trainer.graph import graph_calls
from hookline.trainer.run.network_summary import count_macs

FEW = settings(max_examples=20, deadline=None)


def counts(layer: layers.Layer, *shape: int | None):
    inputs = keras.Input(shape)
    (call,) = graph_calls(keras.Model(inputs, layer(inputs)))
    return count_macs(call)


def total(layer: layers.Layer, *shape: int | None) -> int:
    return sum(counts(layer, *shape).values())


def sum_over_ones(layer: layers.Layer, *shape: int) -> int:
    """Return the sum of the outputs for ones with kernels of ones: each product adds one, where nothing is padded."""
    for weight in layer.weights:
        weight.assign(np.ones(weight.shape) if len(weight.shape) > 1 else np.zeros(weight.shape))
    return round(float(np.sum(layer(np.ones((1, *shape), np.float32)))))


@FEW
@given(
    side=st.integers(5, 9),
    channels=st.sampled_from([2, 4]),
    filters=st.sampled_from([2, 6]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
)
def test_a_convolution_counts_every_product_once(side, channels, filters, kernel, stride, dilation, groups):
    dilation = 1 if stride > 1 else dilation
    options = {"strides": stride, "dilation_rate": dilation, "groups": groups, "use_bias": False}
    layer = layers.Conv2D(filters, kernel, **options)
    assert total(layer, side, side + 1, channels) == sum_over_ones(layer, side, side + 1, channels)


@FEW
@given(side=st.integers(4, 8), channels=st.integers(1, 3), multiplier=st.integers(1, 3), stride=st.integers(1, 2))
def test_depthwise_and_transposed_convolutions_count_every_product_once(side, channels, multiplier, stride):
    layer = layers.DepthwiseConv2D(3, strides=stride, depth_multiplier=multiplier, use_bias=False)
    assert total(layer, side, side, channels) == sum_over_ones(layer, side, side, channels)
    layer = layers.Conv1DTranspose(multiplier, 3, strides=stride, use_bias=False)
    assert total(layer, side, channels) == sum_over_ones(layer, side, channels)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.Dense(7), (4, 3, 5)),
        (layers.Conv1D(4, 3, strides=2), (9, 2)),
        (layers.Conv3D(2, 2), (4, 3, 5, 2)),
        (layers.EinsumDense("abc,cde->abde", output_shape=(4, 2, 6)), (4, 3)),
        (layers.EinsumDense("ab,bc->ac", output_shape=6, bias_axes="c"), (4,)),
    ],
)
def test_other_layers_count_every_product_once(layer, shape):
    assert total(layer, *shape) == sum_over_ones(layer, *shape)


def test_padding_is_counted_and_strides_leave_outputs_out():
    assert total(layers.Conv2D(8, 3, padding="same"), 10, 10, 4) == 10 * 10 * 8 * 9 * 4
    assert total(layers.Conv2D(8, 3, padding="same", strides=2), 9, 10, 4) == 5 * 5 * 8 * 9 * 4
    assert total(layers.Conv2D(8, 3), 10, 10, 4) == 8 * 8 * 8 * 9 * 4
    layer = layers.SeparableConv2D(6, 3, depth_multiplier=2)
    found, both = counts(layer, 8, 8, 3), (6 * 6 * (3 * 2) * 9, 6 * 6 * 6 * (3 * 2))
    assert found == dict(zip((id(layer.depthwise_kernel), id(layer.pointwise_kernel)), both, strict=True))


def test_what_is_not_known_is_not_counted():
    assert counts(layers.BatchNormalization(), 8, 8, 3) == counts(layers.Embedding(10, 4), 6) == {}
    for layer in (layers.LSTM(4), layers.Bidirectional(layers.GRU(4)), layers.TimeDistributed(layers.Dense(2))):
        assert counts(layer, 5, 3) is None
    assert counts(layers.Conv2D(2, 3), None, None, 3) is None


def test_mobilenet_has_the_569_million_of_its_paper():
    """Howard et al. 2017, arXiv 1704.04861, table 8; and the count of 25 % of the channels, table 6."""
    for alpha, millions in ((1.0, 569), (0.25, 41)):
        model = keras.applications.MobileNet((224, 224, 3), alpha=alpha, weights=None)
        found = [count_macs(call) for call in graph_calls(model)]
        assert round(sum(sum(each.values()) for each in found if each) / 1e6) == millions
