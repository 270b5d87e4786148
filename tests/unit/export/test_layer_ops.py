"""Layers and operations of Keras as operations of packed files: the same numbers, or one line that says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from tests.support.packed import kinds, layers, pack, randomize
from trainer.errors import UserError
from trainer.export.keras_graph import keras_graph

IMAGE, ROW = (4, 4, 3), (6,)
ops = keras.ops


def network(build: Callable[[Any], Any], shape: tuple[int, ...]) -> keras.Model:
    inputs = keras.Input(shape)
    return keras.Model(inputs, build(inputs), name="net")


def joined(layer: Any) -> Callable[[Any], Any]:
    """Return what joins the half of an input, the input and its square."""
    return lambda x: layer([layers.Rescaling(0.5)(x), x, layers.Multiply()([x, x])])


COMPUTED: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], list[str]]] = {
    "slope": (layers.ReLU(negative_slope=0.3), ROW, ["activation"]),
    "no slope": (layers.ReLU(), ROW, ["activation"]),
    "up to 6": (layers.ReLU(max_value=6), ROW, ["activation"]),
    "leaky": (layers.LeakyReLU(0.4), ROW, ["activation"]),
    "elu": (layers.ELU(0.5), ROW, ["activation"]),
    "softmax": (layers.Softmax(), ROW, ["activation"]),
    "linear": (layers.Dense(3, activation="linear"), ROW, ["dense"]),
    "a layer as activation": (layers.Dense(3, activation=layers.LeakyReLU(0.1)), ROW, ["dense", "activation"]),
    "another name": (layers.Dense(3, activation="swish"), ROW, ["dense", "activation"]),
    "separable": (
        layers.SeparableConv2D(5, 2, strides=2, depth_multiplier=2, padding="same", activation="tanh"),
        IMAGE,
        ["depthwise_conv2d", "conv2d", "activation"],
    ),
    "strides": (layers.Conv2D(5, (2, 3), strides=(2, 1), padding="same"), IMAGE, ["conv2d"]),
    "dilation": (layers.DepthwiseConv2D(2, dilation_rate=(2, 1), depth_multiplier=2), IMAGE, ["depthwise_conv2d"]),
    "norm of the last axis": (layers.BatchNormalization(axis=3), IMAGE, ["scale_shift"]),
    "norm without scale": (layers.BatchNormalization(scale=False, epsilon=0.1), IMAGE, ["scale_shift"]),
    "norm without center": (layers.BatchNormalization(center=False), IMAGE, ["scale_shift"]),
    "mean pool": (layers.AveragePooling2D((2, 3), strides=(1, 2), padding="same"), IMAGE, ["average_pool2d"]),
    "largest pool": (layers.MaxPooling2D((3, 2), strides=1), IMAGE, ["max_pool2d"]),
    "means that stay images": (
        layers.GlobalAveragePooling2D(keepdims=True), IMAGE, ["global_average_pool2d", "reshape"],
    ),
    "largest": (layers.GlobalMaxPooling2D(), IMAGE, ["global_max_pool2d"]),
    "reshape": (layers.Reshape((-1, 6)), IMAGE, ["reshape"]),
    "flatten": (layers.Flatten(), IMAGE, ["flatten"]),
    "zeros": (layers.ZeroPadding2D(((0, 1), (2, 3))), IMAGE, ["zero_pad2d"]),
    "larger": (layers.UpSampling2D((1, 2)), IMAGE, ["upsample2d"]),
    "rescaling": (layers.Rescaling(0.5, -1.25), IMAGE, ["rescale"]),
    "three factors": (joined(layers.Multiply()), IMAGE, ["rescale", "multiply", "multiply"]),
    "three terms": (joined(layers.Add()), IMAGE, ["rescale", "multiply", "add"]),
    "a difference": (lambda x: layers.Subtract()([layers.Rescaling(0.5)(x), x]), IMAGE, ["rescale", "subtract"]),
    "rows joined": (joined(layers.Concatenate(1)), IMAGE, ["rescale", "multiply", "concatenate"]),
    "operators": (lambda x: x * layers.Rescaling(0.5)(x) - x, ROW, ["rescale", "multiply", "subtract"]),
    "arguments by name": (
        lambda x: ops.subtract(x2=x, x1=layers.Rescaling(0.5)(x)) + x, ROW, ["rescale", "subtract", "add"],
    ),
    "joined by an operation": (lambda x: ops.concatenate([x, x + x], axis=-1), IMAGE, ["add", "concatenate"]),
    "relu": (ops.relu, ROW, ["activation"]),
    "relu6": (ops.relu6, ROW, ["activation"]),
    "tanh": (ops.tanh, ROW, ["activation"]),
    "hard_tanh": (ops.hard_tanh, ROW, ["activation"]),
    "sigmoid": (ops.sigmoid, ROW, ["activation"]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_a_packed_layer_computes_what_the_layer_does(name: str):
    build, shape, expected = COMPUTED[name]
    model = network(build, shape)
    randomize(model, 5, {layer.name: None for layer in model.layers})
    packed = pack(model)
    assert kinds(packed) == expected
    inputs = np.random.default_rng(0).normal(scale=4, size=(5, *shape)).astype(np.float32)
    np.testing.assert_allclose(packed(inputs), np.asarray(model(inputs)), rtol=1e-5, atol=1e-5)


IDLE = [
    layers.Identity(), layers.Dropout(0.5), layers.SpatialDropout2D(0.5), layers.GaussianDropout(0.5),
    layers.GaussianNoise(1.0), layers.AlphaDropout(0.5), layers.ActivityRegularization(0.1),
    layers.Activation("linear"),
]  # fmt: skip


@pytest.mark.parametrize("layer", IDLE, ids=lambda layer: type(layer).__name__)
def test_what_works_in_training_alone_is_left_out(layer: keras.Layer):
    inputs = np.ones((2, *IMAGE), np.float32)
    np.testing.assert_array_equal(np.asarray(layer(inputs)), inputs)
    model = network(lambda x: layers.Flatten()(layer(x)), IMAGE)
    assert kinds(pack(model)) == ["flatten"]


REFUSED: dict[str, tuple[keras.Layer, tuple[int, ...], str]] = {
    "threshold": (layers.ReLU(threshold=0.5), ROW, "threshold=0.5"),
    "largest value": (layers.ReLU(max_value=0), ROW, "max_value=0"),
    "slope up to 6": (layers.ReLU(max_value=6, negative_slope=0.1), ROW, "max_value=6 with negative_slope=0.1"),
    "softmax of places": (layers.Softmax(axis=1), IMAGE, "axis=1"),
    "norm of rows": (layers.BatchNormalization(axis=1), IMAGE, "axis=1"),
    "bilinear": (layers.UpSampling2D(2, interpolation="bilinear"), IMAGE, "interpolation=bilinear"),
    "a factor a channel": (layers.Rescaling([1.0, 2.0, 3.0]), IMAGE, "a scale or an offset for each channel"),
    "flatten channels first": (layers.Flatten(data_format="channels_first"), IMAGE, "data_format=channels_first"),
    "pool channels first": (layers.MaxPooling2D(data_format="channels_first"), IMAGE, "data_format=channels_first"),
    "activation": (layers.Dense(2, activation="gelu"), ROW, "activation gelu"),
    "a layer as activation": (layers.Dense(2, activation=layers.ReLU(max_value=1)), ROW, "max_value=1"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_no_operation_has_are_named(name: str):
    layer, shape, why = REFUSED[name]
    with pytest.raises(UserError) as caught:
        keras_graph(network(layer, shape))
    found = f"{layer.name} ({type(layer).__name__}: {why})"
    assert str(caught.value).startswith(f"format=packed has no operation for {found} of 'net'. Expected a network")


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda x: 2.0 * x, "multiply (Multiply: an argument that is no tensor of the network)"),
        (lambda x: ops.square(x), "square (Square)"),
        (lambda x: layers.Masking(name="mask")(ops.square(x)), "square (Square), mask (Masking)"),
    ],
)
def test_all_that_has_no_operation_is_told_at_once(build, named: str):
    keras.utils.clear_session()  # names of operations are counted
    with pytest.raises(UserError) as caught:
        keras_graph(network(build, ROW))
    assert f"has no operation for {named} of 'net'" in str(caught.value)


def inner(x: Any, **kwargs: Any) -> Any:
    return keras.Sequential([keras.Input(ROW), layers.Dropout(0.5)], name="inner")(x, **kwargs)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (layers.Dropout(0.5, name="drop"), "drop (Dropout: training=True)"),
        (layers.BatchNormalization(name="norm"), "norm (BatchNormalization: training=True)"),
        (inner, "inner (Sequential: training=True)"),
    ],
)
def test_a_layer_that_trains_in_evaluations_too_is_refused(call, named: str):
    """Dropout as in Gal and Ghahramani 2016, or statistics of the batch: no operation repeats them."""
    with pytest.raises(UserError) as caught:
        keras_graph(network(lambda x: layers.Dense(2)(call(x, training=True)), ROW))
    assert f"has no operation for {named} of 'net'" in str(caught.value)
    _, nodes, _ = keras_graph(network(lambda x: layers.Dense(2)(call(x, training=False)), ROW))
    assert nodes[-1].kind == "dense"


@pytest.mark.parametrize("variable", ["kernel", "bias", "moving_variance", "gamma"])
def test_a_value_that_is_not_finite_is_named(variable: str):
    model = network(lambda x: layers.BatchNormalization(name="norm")(layers.Dense(3, name="dense")(x)), ROW)
    (found,) = [each for each in model.weights if each.name == variable]
    found.assign(np.where(np.arange(found.shape[-1]) == 1, np.inf, found.numpy()))
    with pytest.raises(UserError, match=f"{found.path} holds values that are not finite"):
        keras_graph(model)


def test_a_bias_of_zeros_is_left_out_and_another_one_is_not():
    model = network(layers.Dense(3, name="dense"), ROW)
    assert set(keras_graph(model)[1][0].arrays) == {"kernel"}
    model.get_layer("dense").bias.assign([0.0, -1.0, 0.0])
    np.testing.assert_array_equal(keras_graph(model)[1][0].arrays["bias"], [0.0, -1.0, 0.0])


def test_a_softmax_is_not_computed_channel_by_channel():
    calls = {
        name: keras_graph(network(layers.Activation(name), ROW))[1][0].call
        for name in ("tanh", "softmax", "log_softmax")
    }
    assert [name for name, call in calls.items() if call is None] == ["softmax", "log_softmax"]
