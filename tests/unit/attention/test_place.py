"""Which map is gated: by default, by pattern, and what is refused in one line."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hooks.attention.place import find_place, nodes_in_order, outputs_in
from hooks.attention.quantized import refuse_sign_after
from hooks.bnn_rounding import BnnRounding
from recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
from recipes.models.lenet_5 import lenet_5
from recipes.models.mlp import mlp
from tests.support.attention import image_model
from trainer.errors import UserError

layers = keras.layers


def residual() -> keras.Model:
    """A stem, a block with a shortcut around it, a convolution in each."""
    inputs = keras.Input((8, 8, 3))
    stem = layers.ReLU(name="stem_relu")(layers.Conv2D(4, 3, padding="same", name="stem")(inputs))
    inner = layers.Conv2D(4, 3, padding="same", name="inner")(stem)
    x = layers.Add(name="add")([stem, inner])
    return keras.Model(inputs, layers.Dense(2, name="logits")(layers.GlobalAveragePooling2D()(x)))


def parallel() -> keras.Model:
    """Two convolutions of the input beside each other, joined, then one of both."""
    inputs = keras.Input((8, 8, 3))
    both = [layers.Conv2D(4, size, padding="same", name=f"conv_{size}")(inputs) for size in (1, 3)]
    x = layers.Conv2D(2, 3, name="joint")(layers.Concatenate(name="concatenate")(both))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


def one_convolution() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    x = keras.ops.relu(layers.Conv2D(4, 3, name="conv")(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(layers.MaxPooling2D(name="pool")(x))))


def nested() -> keras.Model:
    inner_inputs = keras.Input((8, 8, 3))
    inner = keras.Model(inner_inputs, layers.Conv2D(4, 3, name="conv")(inner_inputs), name="body")
    inputs = keras.Input((8, 8, 3))
    x = layers.Flatten()(inner(inputs))
    return keras.Model(inputs, layers.Dense(2, name="logits")(x), name="outer")


def twice() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    shared = layers.Conv2D(3, 3, padding="same", name="shared")
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(shared(shared(inputs)))), name="twice")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.conv = layers.Conv2D(2, 3, name="conv")

    def call(self, inputs):
        return self.conv(inputs)


def subclassed() -> keras.Model:
    model = Subclassed()
    model(np.zeros((1, 8, 8, 3), np.float32))
    return model


@pytest.mark.parametrize(
    ("make", "layer", "shape"),
    [
        (image_model, "pool_1", (None, 4, 4, 4)),
        (lambda: lenet_5((28, 28, 1), 10), "pool_1", (None, 12, 12, 20)),
        (lambda: larq_tutorial_cnn((28, 28, 1), 10), "activation_1", (None, 13, 13, 32)),
        (residual, "stem_relu", (None, 8, 8, 4)),
        (parallel, "concatenate", (None, 8, 8, 8)),
        (one_convolution, "pool", (None, 3, 3, 4)),
    ],
)
def test_the_default_is_what_the_second_convolution_sees(make, layer: str, shape):
    place = find_place(make(), None)
    assert (place.layer, tuple(place.features.shape)) == (layer, shape)


def test_the_default_of_mobilenet_is_its_stem():
    model = keras.applications.MobileNetV2(
        input_shape=(32, 32, 3), alpha=0.35, weights=None, classes=3, classifier_activation=None
    )
    assert find_place(model, None).layer == "Conv1_relu"


def inner_model(*, pooled: bool) -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    maps = keras.layers.Conv2D(5, 3, name="inner_1")(inputs)
    maps = keras.layers.Conv2D(4, 3, name="inner_2")(maps)
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(maps) if pooled else maps, name="backbone")


def test_a_model_inside_counts_as_a_convolution_where_it_returns_a_map():
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((8, 8, 3)), inner_model(pooled=False), *layers])
    place = find_place(model, None)
    assert (place.layer, place.features.shape) == ("backbone", (None, 4, 4, 4))
    pooled = keras.Sequential([keras.Input((8, 8, 3)), inner_model(pooled=True), keras.layers.Dense(3)])
    with pytest.raises(UserError, match="are inside 'backbone', which returns no map .*include_top=False"):
        find_place(pooled, None)


def test_a_pattern_names_the_layer():
    model = image_model()
    place = find_place(model, "activation_?")
    assert place.layer == "activation_1"
    assert place.features is outputs_in(model, model.get_layer("activation_1"))[0]
    sequential = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(2, 3, name="conv"), layers.Flatten()])
    assert find_place(sequential, "conv").layer == "conv"


def test_nodes_come_after_what_they_take_from():
    model = residual()
    seen = {id(tensor) for tensor in model.inputs}
    for node in nodes_in_order(model):
        assert all(id(tensor) in seen for tensor in node.input_tensors)
        seen |= {id(tensor) for tensor in node.output_tensors}


@pytest.mark.parametrize(
    ("make", "pattern", "message"),
    [
        (lambda: mlp((8, 8, 1), 10), None, "'mlp' has no 2-D convolution.*Expected a convolutional network, or layer="),
        (lambda: mlp((8, 8, 1), 10), "flatten", "'flatten' returns float32 of shape .None, 64.. Expected a map"),
        (image_model, "logits", "'logits' returns float32 of shape"),
        (image_model, "con_1", "'con_1' matches no layer. Did you mean 'conv_1'?"),
        (image_model, "conv_?", "layer=conv_. matches 2 layers: conv_1, conv_2. Expected a pattern that matches one"),
        (
            nested,
            "body/conv",
            "'body/conv' is inside 'body'. Expected a layer of the network's own graph, such as layer",
        ),
        (twice, "shared", "'shared' is called 2 times in the model 'twice'"),
        (subclassed, None, "'own' is a Subclassed, whose graph is not known: no gate can be put into it"),
        (
            lambda: keras.Model(model := keras.Input((8, 8, 3)), layers.Conv2D(2, 3, name="map")(model)),
            "map",
            "output of",
        ),
    ],
)
def test_what_cannot_be_gated_is_one_clear_line(make, pattern, message: str):
    with pytest.raises(UserError, match=message):
        find_place(make(), pattern)


def test_channels_first_are_refused():
    inputs = keras.Input((8, 8, 3))
    x = layers.MaxPooling2D(2, data_format="channels_first", name="pool")(layers.Conv2D(2, 3, name="conv")(inputs))
    with pytest.raises(UserError, match="has its channels first. Expected maps .batch, height, width, channels."):
        find_place(keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x))), "conv")


def test_behind_an_input_quantizer_is_the_default_and_before_it_is_refused():
    model = BnnRounding().rebuild_model(larq_tutorial_cnn((28, 28, 1), 10))
    place = find_place(model, None)
    assert place.layer == "conv_2_input_quantizer"
    refuse_sign_after(place)
    refuse_sign_after(find_place(model, "pool_1"))  # a batch norm in between moves the zeros
    expected = r"sign\(0\) = \+1 and not 0. Expected layer=conv_2_input_quantizer, or one with a batch norm between"
    for pattern in ("batch_norm_1", "activation_1"):
        with pytest.raises(UserError, match=expected):
            refuse_sign_after(find_place(model, pattern))


def test_quantizers_with_a_zero_may_follow():
    quantizer = {"name": "dorefa", "k_bit": 2}
    model = BnnRounding(input_quantizer=quantizer).rebuild_model(larq_tutorial_cnn((28, 28, 1), 10))
    refuse_sign_after(find_place(model, "activation_1"))
