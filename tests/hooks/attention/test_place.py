"""Which feature map is gated, by default and by pattern, and what is refused."""

import keras
import numpy as np
import pytest

from hookline.hooks.attention.place import find_place, insert_gated
from hookline.recipes.models.mlp import mlp
from tests.support.attention import image_model
from tests.support.refusals import assert_refused

layers = keras.layers


def residual() -> keras.Model:
    """Return a stem and a residual block, with one convolution in each."""
    inputs = keras.Input((8, 8, 3))
    stem = layers.ReLU(name="stem_relu")(layers.Conv2D(4, 3, padding="same", name="stem")(inputs))
    inner = layers.Conv2D(4, 3, padding="same", name="inner")(stem)
    x = layers.Add(name="add")([stem, inner])
    return keras.Model(inputs, layers.Dense(2, name="logits")(layers.GlobalAveragePooling2D()(x)))


def inner_model(*, pooled: bool) -> keras.Model:
    inputs = keras.Input((8, 8, 3))
    maps = layers.Conv2D(4, 3, name="inner_2")(layers.Conv2D(5, 3, name="inner_1")(inputs))
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(maps) if pooled else maps, name="backbone")


def test_default_map_is_second_convolution_input_or_inner_model_output():
    end = [layers.GlobalAveragePooling2D(), layers.Dense(3)]
    for model, layer, shape in (
        (image_model(), "pool_1", (None, 4, 4, 4)),
        (residual(), "stem_relu", (None, 8, 8, 4)),
        (keras.Sequential([keras.Input((8, 8, 3)), inner_model(pooled=False), *end]), "backbone", (None, 4, 4, 4)),
    ):
        place = find_place(model, None)
        assert (place.layer, tuple(place.features.shape)) == (layer, shape)
    assert find_place(image_model(), "activation_?").layer == "activation_1"
    pooled = keras.Sequential([keras.Input((8, 8, 3)), inner_model(pooled=True), keras.layers.Dense(3)])
    assert_refused("itself returns a map .*include_top=False", find_place, pooled, None)


def test_maps_that_cannot_be_gated_are_refused():
    inputs = keras.Input((8, 8, 3))
    pooled = layers.MaxPooling2D(2, data_format="channels_first", name="pool")(layers.Conv2D(2, 3, name="conv")(inputs))
    channels_first = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(pooled)))
    for model, pattern, word in (
        (mlp((8, 8, 1), 10), None, "convolution"),
        (image_model(), "con_1", "con_1"),
        (image_model(), "conv_?", "conv_1, conv_2"),
        (keras.Sequential([inputs, inner_model(pooled=True)]), "backbone/inner_1", "not a direct part"),
        (keras.Model(inputs, layers.Conv2D(2, 3, name="map")(inputs)), "map", "output of"),
        (channels_first, "conv", "channels first"),
    ):
        assert_refused(word, find_place, model, pattern)


X = np.random.default_rng(0).normal(size=(3, 8, 8, 1)).astype(np.float32)


def shortcut() -> keras.Model:
    """A convolution with shortcuts from its input and from before the gate; one of two outputs bypasses the gate."""
    inputs = keras.Input((8, 8, 1), name="image")
    stem = layers.Conv2D(2, 3, padding="same", name="stem")(inputs)
    inner = layers.Conv2D(2, 3, padding="same", name="inner")(stem)
    x = layers.Add(name="add")([stem, inner, inputs])
    beside = layers.Dense(1, name="beside")(layers.Flatten(name="flat_inputs")(inputs))
    return keras.Model(inputs, {"main": layers.Dense(2, name="main")(layers.Flatten(name="flat")(x)), "beside": beside})


@pytest.mark.parametrize("join", ["replace", "concatenate"])
def test_gated_map_reaches_all_consumers_and_nothing_else_changes(join: str, tmp_path):
    model = shortcut()
    plain = model(X)
    stem, inner = model.get_layer("stem"), model.get_layer("inner")
    half = stem(X) / 2
    masked = model.get_layer("main")(keras.ops.reshape(half + inner(half) + X, (3, -1))).numpy()
    place = find_place(model, "stem")
    gated = insert_gated(place, layers.Rescaling(0.5, name="half")(place.features), join=join, name="attention")
    outputs = gated(X)
    np.testing.assert_allclose(outputs["beside"], plain["beside"], rtol=1e-5)
    expected = masked if join == "replace" else np.concatenate([masked, plain["main"]], axis=-1)
    np.testing.assert_allclose(outputs["main"], expected, rtol=1e-4, atol=1e-5)
    assert {id(v) for v in gated.variables} == {id(v) for v in model.variables}
    np.testing.assert_array_equal(model(X)["main"], plain["main"])  # the original model is unchanged
    gated.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(X)["main"], outputs["main"])
