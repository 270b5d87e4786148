"""A gate in a model's graph: what is above sees it, variables stay the same, models save and load."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hookline.hooks.attention.place import find_place, insert_gated
from tests.support.attention import image_model

layers = keras.layers
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
