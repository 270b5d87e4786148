"""Keras models as graphs of inference operations, with custom layers that describe theirs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from hookline.deploy.keras_graph import described_op, keras_graph
from hookline.hooks.quantization.layers import InputQuantizer
from hookline.hooks.quantization.quantizers import FUNCTIONS, KERNEL_ONLY
from tests.support.packed import kinds, layers, pack, randomize
from tests.support.refusals import assert_refused, refusal


class Own(keras.layers.Layer):
    """Return the description that a test gives it."""

    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__(name="own")
        self.described = described

    def inference_op(self) -> dict[str, Any]:
        return dict(self.described)


def test_quantizers_and_custom_layers_describe_their_operation():
    for name in FUNCTIONS.keys() - KERNEL_ONLY:
        op = {"dorefa": {"op": "round", "bits": 2}, "ste_tern": {"op": "ternary", "threshold": 0.05}}
        assert described_op(InputQuantizer(name)) == op.get(name, {"op": "sign"})
    assert described_op(InputQuantizer({"name": "dorefa", "k_bit": 5})) == {"op": "round", "bits": 5}
    assert described_op(InputQuantizer({"name": "ste_tern", "threshold": 1})) == {"op": "ternary", "threshold": 1.0}
    assert described_op(Own({"op": "identity"})) == {"op": "identity"}
    for described in ({"op": "fly"}, {"op": "round"}, {"op": "sign", "bits": 1}, {"bits": 1}):
        with pytest.raises(ValueError, match="Own.inference_op returned"):
            described_op(Own(described))


IMAGE, ROW = (4, 4, 3), (6,)
ops = keras.ops


def network(build: Callable[[Any], Any], shape: tuple[int, ...]) -> keras.Model:
    inputs = keras.Input(shape)
    return keras.Model(inputs, build(inputs), name="net")


def joined(layer: Callable[[], Any]) -> Callable[[Any], Any]:
    """Return a function that joins half of an input, the input, and its square."""
    return lambda x: layer()([layers.Rescaling(0.5)(x), x, layers.Multiply()([x, x])])


COMPUTED: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], list[str]]] = {
    "slope": (layers.ReLU(negative_slope=0.3), ROW, ["activation"]),
    "up to 6": (layers.ReLU(max_value=6), ROW, ["activation"]),
    "leaky": (layers.LeakyReLU(0.4), ROW, ["activation"]),
    "elu": (layers.ELU(0.5), ROW, ["activation"]),
    "prelu": (layers.PReLU("random_normal", shared_axes=(1, 2)), IMAGE, ["prelu"]),
    "no slope": (layers.ReLU(), ROW, ["activation"]),
    "softmaxes": (lambda x: ops.softmax(layers.Softmax()(x)), ROW, ["activation", "activation"]),
    "a layer as activation": (layers.Dense(3, activation=layers.LeakyReLU(0.1)), ROW, ["dense", "activation"]),
    "separable": (
        layers.SeparableConv2D(5, 2, strides=2, depth_multiplier=2, padding="same", activation="tanh"),
        IMAGE, ["depthwise_conv2d", "conv2d", "activation"],
    ),
    "strides": (layers.Conv2D(5, (2, 3), strides=(2, 1), padding="same"), IMAGE, ["conv2d"]),
    "dilation": (layers.DepthwiseConv2D(2, dilation_rate=(2, 1), depth_multiplier=2), IMAGE, ["depthwise_conv2d"]),
    "norm without scale": (layers.BatchNormalization(scale=False, epsilon=0.1), IMAGE, ["scale_shift"]),
    "mean pool": (layers.AveragePooling2D((2, 3), strides=(1, 2), padding="same"), IMAGE, ["average_pool2d"]),
    "largest pool": (layers.MaxPooling2D((3, 2), strides=1), IMAGE, ["max_pool2d"]),
    "means": (layers.GlobalAveragePooling2D(keepdims=True), IMAGE, ["global_average_pool2d", "reshape"]),
    "largest": (layers.GlobalMaxPooling2D(), IMAGE, ["global_max_pool2d"]),
    "reshape": (layers.Reshape((-1, 6)), IMAGE, ["reshape"]),
    "flatten": (layers.Flatten(), IMAGE, ["flatten"]),
    "zeros": (layers.ZeroPadding2D(((0, 1), (2, 3))), IMAGE, ["zero_pad2d"]),
    "larger": (layers.UpSampling2D((1, 2)), IMAGE, ["upsample2d"]),
    "rescaling": (layers.Rescaling(0.5, -1.25), IMAGE, ["rescale"]),
    "three factors": (joined(layers.Multiply), IMAGE, ["rescale", "multiply", "multiply"]),
    "three terms": (joined(layers.Add), IMAGE, ["rescale", "multiply", "add"]),
    "a difference": (lambda x: layers.Subtract()([layers.Rescaling(0.5)(x), x]), IMAGE, ["rescale", "subtract"]),
    "rows joined": (joined(partial(layers.Concatenate, 1)), IMAGE, ["rescale", "multiply", "concatenate"]),
    "operators": (lambda x: x * layers.Rescaling(0.5)(x) - x, ROW, ["rescale", "multiply", "subtract"]),
    "arguments by name": (
        lambda x: ops.subtract(x2=x, x1=layers.Rescaling(0.5)(x)) + x, ROW, ["rescale", "subtract", "add"],
    ),
    "joined by an operation": (lambda x: ops.concatenate([x, x + x], axis=-1), IMAGE, ["add", "concatenate"]),
    **{name: (getattr(ops, name), ROW, ["activation"]) for name in ("relu", "relu6", "tanh", "hard_tanh", "sigmoid")},
}  # fmt: skip


def test_packed_layers_match_keras_layers():
    for name, (build, shape, expected) in COMPUTED.items():
        model = network(build, shape)
        randomize(model, 5, {layer.name: None for layer in model.layers})
        packed = pack(model)
        assert kinds(packed) == expected, name
        inputs = np.random.default_rng(0).normal(scale=4, size=(5, *shape)).astype(np.float32)
        np.testing.assert_allclose(packed(inputs), np.asarray(model(inputs)), rtol=1e-5, atol=1e-5, err_msg=name)


def test_training_only_layers_are_left_out():
    inputs = np.ones((2, *IMAGE), np.float32)
    inputs[0, 0] = 0.0
    for layer in (
        layers.Identity(), layers.Dropout(0.5), layers.SpatialDropout2D(0.5), layers.GaussianDropout(0.5),
        layers.GaussianNoise(1.0), layers.AlphaDropout(0.5), layers.ActivityRegularization(0.1),
        layers.Activation("linear"), layers.RandomFlip(), layers.RandomRotation(0.5), layers.RandomContrast(0.5),
    ):  # fmt: skip
        np.testing.assert_array_equal(np.asarray(layer(inputs, training=False)), inputs)
        for given in ({}, {"training": True}):  # which an evaluation of Keras overrides
            build = partial(lambda x, layer, given: layers.Flatten()(layer(x, **given)), layer=layer, given=given)
            assert kinds(pack(network(build, IMAGE))) == ["flatten"]


def relu(x):
    """Have the name of a function of Keras, but compute something else."""
    return keras.ops.square(x)


REFUSED: list[tuple[Callable[[Any], Any], tuple[int, ...], str]] = [
    (layers.ReLU(threshold=0.5), ROW, "(ReLU: threshold=0.5)"),
    (layers.ReLU(max_value=6, negative_slope=0.1), ROW, "max_value=6, negative_slope=0.1"),
    (layers.ReLU(max_value=3.0), ROW, "max_value=3"),
    (layers.Softmax(axis=1), IMAGE, "axis=1"),
    (layers.BatchNormalization(axis=1), IMAGE, "axis=1"),
    (layers.UpSampling2D(2, interpolation="bilinear"), IMAGE, "interpolation=bilinear"),
    (layers.Rescaling([1.0, 2.0, 3.0]), IMAGE, "a scale or an offset for each channel"),
    (layers.Flatten(data_format="channels_first"), IMAGE, "data_format=channels_first"),
    (layers.Conv2D(3, 3, groups=3, name="conv"), IMAGE, "conv (Conv2D: groups=3)"),
    (layers.LayerNormalization(name="norm"), ROW, "norm (LayerNormalization)"),
    (layers.Dense(2, activation="gelu"), ROW, "activation gelu"),
    (layers.Dense(2, activation=relu, name="dense"), ROW, "dense (Dense: activation relu)"),
    (InputQuantizer({"name": "ste_tern", "ternary_weight_networks": True}, name="before"), ROW, "before (InputQuant"),
    (lambda x: 2.0 * x, ROW, "(Multiply: an argument that is not a tensor of the network)"),
    (lambda x: layers.Masking(name="mask")(ops.square(x)), ROW, "(Square), mask (Masking)"),
]


def test_layers_without_an_operation_are_named():
    for build, shape, why in REFUSED:
        assert why in refusal(keras_graph, network(build, shape))


def test_nonfinite_weights_are_refused_and_zero_bias_is_left_out():
    def model() -> keras.Model:
        return network(lambda x: layers.BatchNormalization(name="norm")(layers.Dense(3, name="dense")(x)), ROW)

    for variable in ("kernel", "bias", "moving_variance", "gamma"):
        made = model()
        (found,) = [each for each in made.weights if each.name == variable]
        found.assign(np.where(np.arange(found.shape[-1]) == 1, np.inf, found.numpy()))
        assert_refused(f"{found.path} holds values that are not finite", keras_graph, made)
    made = model()
    assert set(keras_graph(made)[1][0].arrays) == {"kernel"}
    made.get_layer("dense").bias.assign([0.0, -1.0, 0.0])
    np.testing.assert_array_equal(keras_graph(made)[1][0].arrays["bias"], [0.0, -1.0, 0.0])


def test_softmax_is_not_computed_per_channel():
    for name, apart in {"tanh": True, "softmax": False, "log_softmax": False}.items():
        assert (keras_graph(network(layers.Activation(name), ROW))[1][0].call is not None) == apart
