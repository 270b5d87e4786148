"""Which map is gated: by default, by pattern, and what is refused in one line."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hookline.hooks.attention.place import find_place, insert_gated, refuse_sign_after
from hookline.hooks.bnn_rounding import BnnRounding
from hookline.recipes.models.cnn import larq_tutorial_cnn
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


X = np.random.default_rng(0).normal(size=(3, 8, 8, 1)).astype(np.float32)


def halved(model: keras.Model, pattern: str | None = None, join: str = "replace") -> keras.Model:
    """Return the model with half of the map in place of the map: a gate whose result is known."""
    place = find_place(model, pattern)
    return insert_gated(place, layers.Rescaling(0.5, name="half")(place.features), join=join, name="attention")


def above(model: keras.Model, layer: str, value: np.ndarray) -> np.ndarray:
    """Return the outputs of the unchanged model for another value of a layer's output."""
    upper = keras.Model(model.get_layer(layer).output, model.output)
    return upper.predict(value, verbose=0)


def at(model: keras.Model, layer: str) -> np.ndarray:
    return keras.Model(model.input, model.get_layer(layer).output).predict(X, verbose=0)


def test_everything_above_sees_the_gated_map_and_the_rest_stays(tmp_path):
    model = image_model()
    before, value = model.predict(X, verbose=0), at(model, "pool_1")
    masked = above(model, "pool_1", value / 2)
    assert not np.allclose(masked, before)
    for join, expected in (("replace", masked), ("concatenate", np.concatenate([masked, before], axis=-1))):
        gated = halved(model, join=join)
        np.testing.assert_allclose(gated.predict(X, verbose=0), expected, rtol=1e-5)
        assert [id(v) for v in gated.variables] == [id(v) for v in model.variables]
        np.testing.assert_array_equal(model.predict(X, verbose=0), before)  # the model that was given stays as it is
        gated.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded.predict(X, verbose=0), gated.predict(X, verbose=0))


def shortcut() -> keras.Model:
    """A convolution with a shortcut around it and one from below the gate; two outputs, one of them beside the gate."""
    inputs = keras.Input((8, 8, 1), name="image")
    stem = layers.Conv2D(2, 3, padding="same", name="stem")(inputs)
    inner = layers.Conv2D(2, 3, padding="same", name="inner")(stem)
    x = layers.Add(name="add")([stem, inner, inputs])
    beside = layers.Dense(1, name="beside")(layers.Flatten(name="flat_inputs")(inputs))
    return keras.Model(inputs, {"main": layers.Dense(2, name="main")(layers.Flatten(name="flat")(x)), "beside": beside})


@pytest.mark.parametrize("join", ["replace", "concatenate"])
def test_shortcuts_see_the_gated_map_and_outputs_keep_their_names(join: str):
    model = shortcut()
    plain = model.predict(X, verbose=0)
    stem, inner = model.get_layer("stem"), model.get_layer("inner")
    half = stem(X) / 2
    masked = model.get_layer("main")(keras.ops.reshape(half + inner(half) + X, (3, -1))).numpy()
    outputs = halved(model, "stem", join).predict(X, verbose=0)
    np.testing.assert_allclose(outputs["beside"], plain["beside"], rtol=1e-5)
    expected = masked if join == "replace" else np.concatenate([masked, plain["main"]], axis=-1)
    np.testing.assert_allclose(outputs["main"], expected, rtol=1e-4, atol=1e-5)
