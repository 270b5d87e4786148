"""Where the features of center loss are, and the plane in which they are drawn."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.centers import find_features, plane_axes
from hookline.trainer.errors import UserError


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
        found = keras.Model(model.inputs, find_features(model, pattern))(tf.constant(INPUTS))
        np.testing.assert_array_equal(found, expected)


def test_what_cannot_be_features_is_refused() -> None:
    inputs = keras.Input((4, 4, 1))
    no_dense = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 3)(inputs)))
    for model, pattern, word in (
        (network(nested=True), "head/logits", "logits"),
        (network(), "conv", "2, 2, 3"),
        (network(), "f*", "flatten, features"),
        (network(), "featres", "featres"),
        (no_dense, None, "dense"),
    ):
        with pytest.raises(UserError, match=word):
            find_features(model, pattern)


def test_more_dimensions_are_shown_along_their_largest_variance() -> None:
    generator = np.random.default_rng(1)
    flat = generator.normal(size=(200, 2)) * [5.0, 2.0]
    directions = np.linalg.qr(generator.normal(size=(6, 6)))[0][:2]
    points = flat @ directions + 0.1 * generator.normal(size=(200, 6)) + 30.0
    axes, share = plane_axes(points)
    covariance = np.cov(points.T)
    largest = np.sort(np.linalg.eigvalsh(covariance))[::-1]
    np.testing.assert_allclose((points @ axes).var(axis=0, ddof=1), largest[:2], rtol=1e-6)
    assert share == pytest.approx(largest[:2].sum() / largest.sum())
