"""Where the features are: found in the model's own graph, or refused in one line."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.centers.features import find_features
from trainer.errors import UserError


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


def test_features_are_the_input_of_the_last_dense_layer() -> None:
    model = network()
    found = find_features(model, None)
    expected = keras.Model(model.inputs, model.get_layer("features").output)(tf.constant(INPUTS))
    np.testing.assert_array_equal(values(model, found, INPUTS), expected)


@pytest.mark.parametrize("pattern", ["flatten", "flat*", "logits"])
def test_features_are_the_output_of_the_layer_that_is_named(pattern: str) -> None:
    model = network()
    name = "flatten" if pattern.startswith("flat") else pattern
    expected = keras.Model(model.inputs, model.get_layer(name).output)(tf.constant(INPUTS))
    np.testing.assert_array_equal(values(model, find_features(model, pattern), INPUTS), expected)


def test_a_rebuilt_model_has_its_own_features() -> None:
    model = network()

    def doubled(layer, *args, **kwargs):
        return layer(args[0] * 2.0) if layer.name == "features" else layer(*args, **kwargs)

    rebuilt = keras.models.clone_model(model, clone_function=lambda layer: layer, call_function=doubled)
    bias_free = values(rebuilt, find_features(rebuilt, None), INPUTS)
    np.testing.assert_allclose(bias_free, 2.0 * values(model, find_features(model, None), INPUTS), rtol=1e-5)


def test_a_sequential_model_and_a_model_of_operations_have_features() -> None:
    layers = [keras.Input((3,)), keras.layers.Dense(4, name="a"), keras.layers.Dense(2, name="b")]
    assert find_features(keras.Sequential(layers), None).shape == (None, 4)
    inputs = keras.Input((3,))
    x = keras.ops.relu(keras.layers.Dense(4, name="a")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2, name="b")(x))
    np.testing.assert_array_equal(
        values(model, find_features(model, None), INPUTS[0, :3, :3, 0]) >= 0.0, np.ones((3, 4), bool)
    )


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    ("model", "pattern", "message"),
    [
        (lambda: network(nested=True), "head/logits", "'logits' is not a direct part of the model 'net'"),
        (network, "conv", r"output of the layer 'conv' has the shape \(None, 2, 2, 3\). Expected features"),
        (network, "f*", "'f[*]' matches flatten, features. Expected layer to match one of them"),
        (network, "featres", "Did you mean 'features'"),
        (network, "image", r"output of the layer 'image' has the shape"),
        (Subclassed, None, "is a Subclassed, whose inner tensors are not known"),
    ],
)
def test_what_cannot_be_features_is_one_clear_line(model, pattern, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_features(model(), pattern)


def test_features_that_cannot_learn_are_refused() -> None:
    inputs = keras.Input((3,), name="image")
    plain = keras.Model(inputs, keras.layers.Dense(2, name="logits")(keras.layers.Flatten(name="flat")(inputs)))
    with pytest.raises(UserError, match="The input of the layer 'logits' depends on no trainable weight"):
        find_features(plain, None)
    frozen = network()
    for name in ("conv", "features"):
        frozen.get_layer(name).trainable = False
    with pytest.raises(UserError, match="depends on no trainable weight"):
        find_features(frozen, None)


def test_a_model_without_a_dense_layer_lists_its_layers() -> None:
    inputs = keras.Input((4, 4, 1), name="image")
    x = keras.layers.GlobalAveragePooling2D(name="pool")(keras.layers.Conv2D(2, 3, name="conv")(inputs))
    model = keras.Model(inputs, x)
    with pytest.raises(UserError, match="no dense layer of its own .*one of: image, conv, pool"):
        find_features(model, None)
    assert find_features(model, "pool").shape == (None, 2)
