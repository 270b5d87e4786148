"""Multiply-accumulates: counted layers against sums over ones, which count themselves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.graph import Call, graph_calls
from trainer.run.multiply_accumulates import count_macs

FEW = settings(max_examples=20, deadline=None)


def called(layer: keras.layers.Layer, *shape: int | None) -> Call:
    inputs = keras.Input(shape)
    (call,) = graph_calls(keras.Model(inputs, layer(inputs)))
    return call


def total(layer: keras.layers.Layer, *shape: int | None) -> int:
    counts = count_macs(called(layer, *shape))
    assert counts is not None
    return sum(counts.values())


def sum_over_ones(layer: keras.layers.Layer, *shape: int) -> int:
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
    layer = keras.layers.Conv2D(filters, kernel, **options)
    assert total(layer, side, side + 1, channels) == sum_over_ones(layer, side, side + 1, channels)


@FEW
@given(side=st.integers(4, 8), channels=st.integers(1, 3), multiplier=st.integers(1, 3), stride=st.integers(1, 2))
def test_a_depthwise_convolution_takes_one_channel_for_each_output(side, channels, multiplier, stride):
    layer = keras.layers.DepthwiseConv2D(3, strides=stride, depth_multiplier=multiplier, use_bias=False)
    assert total(layer, side, side, channels) == sum_over_ones(layer, side, side, channels)


@FEW
@given(length=st.integers(2, 6), channels=st.integers(1, 3), filters=st.integers(1, 3), stride=st.integers(1, 3))
def test_a_transposed_convolution_takes_a_window_for_each_input(length, channels, filters, stride):
    layer = keras.layers.Conv1DTranspose(filters, 3, strides=stride, use_bias=False)
    assert total(layer, length, channels) == sum_over_ones(layer, length, channels)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (keras.layers.Dense(7), (5,)),
        (keras.layers.Dense(7), (4, 3, 5)),
        (keras.layers.Conv1D(4, 3, strides=2), (9, 2)),
        (keras.layers.Conv3D(2, 2), (4, 3, 5, 2)),
        (keras.layers.EinsumDense("abc,cde->abde", output_shape=(4, 2, 6)), (4, 3)),
        (keras.layers.EinsumDense("ab,bc->ac", output_shape=6, bias_axes="c"), (4,)),
    ],
)
def test_other_layers_count_every_product_once(layer, shape):
    assert total(layer, *shape) == sum_over_ones(layer, *shape)


def test_padding_is_counted_as_what_is_computed_and_strides_leave_outputs_out():
    assert total(keras.layers.Conv2D(8, 3, padding="same"), 10, 10, 4) == 10 * 10 * 8 * 9 * 4
    assert total(keras.layers.Conv2D(8, 3, padding="same", strides=2), 9, 10, 4) == 5 * 5 * 8 * 9 * 4
    assert total(keras.layers.Conv2D(8, 3), 10, 10, 4) == 8 * 8 * 8 * 9 * 4


def test_a_separable_convolution_counts_both_kernels_apart():
    layer = keras.layers.SeparableConv2D(6, 3, depth_multiplier=2)
    counts = count_macs(called(layer, 8, 8, 3))
    assert counts == {
        id(layer.depthwise_kernel): 6 * 6 * (3 * 2) * 9,
        id(layer.pointwise_kernel): 6 * 6 * 6 * (3 * 2),
    }


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.MaxPooling2D(2),
        keras.layers.BatchNormalization(),
        keras.layers.Activation("relu"),
        keras.layers.Flatten(),
        keras.layers.PReLU(),
    ],
)
def test_what_multiplies_no_matrix_counts_nothing(layer):
    counts = count_macs(called(layer, 8, 8, 3))
    assert counts == ({} if not isinstance(layer, keras.layers.PReLU) else None)


def test_an_embedding_looks_up_and_multiplies_nothing():
    assert count_macs(called(keras.layers.Embedding(10, 4), 6)) == {}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (keras.layers.LSTM(4), (5, 3)),
        (keras.layers.Bidirectional(keras.layers.GRU(4)), (5, 3)),
        (keras.layers.TimeDistributed(keras.layers.Dense(2)), (5, 3)),
        (keras.layers.Dense(2), (None, 3)),
        (keras.layers.Conv2D(2, 3), (None, None, 3)),
    ],
)
def test_what_is_not_known_is_not_counted(layer, shape):
    assert count_macs(called(layer, *shape)) is None


def test_products_of_two_tensors_are_not_known():
    inputs = keras.Input((4, 4))
    model = keras.Model(inputs, keras.ops.matmul(inputs, inputs))
    assert [count_macs(call) for call in graph_calls(model)] == [None]
    attended = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
    assert [count_macs(call) for call in graph_calls(keras.Model(inputs, attended))] == [None]


def test_mobilenet_has_the_569_million_of_its_paper():
    """Howard et al. 2017, arXiv 1704.04861, table 8; and the count of 25 % of the channels, table 6."""
    for alpha, millions in ((1.0, 569), (0.25, 41)):
        model = keras.applications.MobileNet((224, 224, 3), alpha=alpha, weights=None)
        counts = [count_macs(call) for call in graph_calls(model)]
        assert round(sum(sum(each.values()) for each in counts if each) / 1e6) == millions
