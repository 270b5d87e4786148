"""Where the features are: found in the model's own graph, or refused in one line."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.centers.features import find_features
from hookline.trainer.errors import UserError


def values(model: keras.Model, tensor, inputs: np.ndarray) -> np.ndarray:
    return keras.Model(model.inputs, tensor)(tf.constant(inputs)).numpy()


def network(*, nested: bool = False) -> keras.Model:
    inputs = keras.Input((4, 4, 1), name="image")
    x = keras.layers.Conv2D(3, 3, name="conv")(inputs)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(5, name="features")(x)
    head = keras.layers.Dense(2, name="logits")
    if nested:
        head = keras.Sequential([keras.Input((5,)), head], name="head")
    x = keras.layers.BatchNormalization(name="norm")(head(x))
    return keras.Model(inputs, x, name="net")


INPUTS = np.random.default_rng(0).normal(size=(2, 4, 4, 1)).astype(np.float32)


def test_features_are_the_input_of_the_last_dense_layer_or_what_is_named() -> None:
    model = network()
    for pattern, name in ((None, "features"), ("flat*", "flatten"), ("logits", "logits")):
        expected = keras.Model(model.inputs, model.get_layer(name).output)(tf.constant(INPUTS))
        np.testing.assert_array_equal(values(model, find_features(model, pattern), INPUTS), expected)


def test_what_cannot_be_features_is_refused() -> None:
    frozen = network()
    for name in ("conv", "features"):
        frozen.get_layer(name).trainable = False
    inputs = keras.Input((4, 4, 1))
    no_dense = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 3)(inputs)))
    for model, pattern, word in (
        (network(nested=True), "head/logits", "logits"),
        (network(), "conv", "2, 2, 3"),
        (network(), "f*", "flatten, features"),
        (network(), "featres", "featres"),
        (frozen, None, "trainable"),
        (no_dense, None, "dense"),
    ):
        with pytest.raises(UserError, match=word):
            find_features(model, pattern)
