"""Which map is gated: by default, by pattern, and what is refused in one line."""

from __future__ import annotations

import keras
import pytest

from hookline.hooks.attention.place import find_place, refuse_sign_after
from hookline.hooks.bnn_rounding import BnnRounding
from hookline.recipes.models.larq_tutorial_cnn import larq_tutorial_cnn
from hookline.recipes.models.mlp import mlp
from hookline.trainer.errors import UserError
from tests.support.attention import image_model

layers = keras.layers


def residual() -> keras.Model:
    """A stem, a block with a shortcut around it, a convolution in each."""
    inputs = keras.Input((8, 8, 3))
    stem = layers.ReLU(name="stem_relu")(layers.Conv2D(4, 3, padding="same", name="stem")(inputs))
    inner = layers.Conv2D(4, 3, padding="same", name="inner")(stem)
    x = layers.Add(name="add")([stem, inner])
    return keras.Model(inputs, layers.Dense(2, name="logits")(layers.GlobalAveragePooling2D()(x)))


def twice() -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    shared = layers.Conv2D(3, 3, padding="same", name="shared")
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(shared(shared(inputs)))), name="twice")


def test_the_default_is_what_the_second_convolution_sees():
    for model, layer, shape in (
        (image_model(), "pool_1", (None, 4, 4, 4)),
        (larq_tutorial_cnn((28, 28, 1), 10), "activation_1", (None, 13, 13, 32)),
        (residual(), "stem_relu", (None, 8, 8, 4)),
    ):
        place = find_place(model, None)
        assert (place.layer, tuple(place.features.shape)) == (layer, shape)
    assert find_place(image_model(), "activation_?").layer == "activation_1"


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


def test_what_cannot_be_gated_is_refused():
    inputs = keras.Input((8, 8, 3))
    pooled = layers.MaxPooling2D(2, data_format="channels_first", name="pool")(layers.Conv2D(2, 3, name="conv")(inputs))
    channels_first = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(pooled)))
    for model, pattern, word in (
        (mlp((8, 8, 1), 10), None, "convolution"),
        (image_model(), "logits", "logits"),
        (image_model(), "con_1", "con_1"),
        (image_model(), "conv_?", "conv_1, conv_2"),
        (keras.Sequential([inputs, inner_model(pooled=True)]), "backbone/inner_1", "inside 'backbone'"),
        (twice(), "shared", "2 times"),
        (keras.Model(inputs, layers.Conv2D(2, 3, name="map")(inputs)), "map", "output of"),
        (channels_first, "conv", "channels first"),
    ):
        with pytest.raises(UserError, match=word):
            find_place(model, pattern)


def test_the_default_is_behind_an_input_quantizer_and_never_before():
    model = BnnRounding().rebuild_model(larq_tutorial_cnn((28, 28, 1), 10))
    place = find_place(model, None)
    assert place.layer == "conv_2_input_quantizer"
    refuse_sign_after(place)
    refuse_sign_after(find_place(model, "pool_1"))  # a batch norm in between moves the zeros
    with pytest.raises(UserError, match="conv_2_input_quantizer"):
        refuse_sign_after(find_place(model, "activation_1"))
    model = BnnRounding(input_quantizer={"name": "dorefa", "k_bit": 2}).rebuild_model(
        larq_tutorial_cnn((28, 28, 1), 10)
    )
    refuse_sign_after(find_place(model, "activation_1"))  # a quantizer with a zero
