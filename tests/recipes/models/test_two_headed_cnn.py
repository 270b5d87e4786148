"""The network with two heads: one body, a layer that does nothing before the second head, and what it refuses."""

from __future__ import annotations

import keras
import numpy as np

from hookline.recipes.models.two_headed_cnn import two_headed_cnn
from hookline.trainer.graph import layer_input, layer_output


def test_the_heads_stand_on_one_body_under_readable_names() -> None:
    model = two_headed_cnn((12, 12, 1), 10)
    assert {layer.name for layer in model.layers} == {
        *("image", "conv_1", "pool_1", "conv_2", "pool_2", "features"),
        *("class_dense_1", "class_logits", "domain_entrance", "domain_dense_1", "domain_logits"),
    }
    kernels = {v.path.removesuffix("/kernel"): tuple(v.shape) for v in model.variables if v.path.endswith("/kernel")}
    assert kernels == {
        "conv_1": (3, 3, 1, 16),
        "conv_2": (3, 3, 16, 32),
        "class_dense_1": (288, 64),
        "class_logits": (64, 10),
        "domain_dense_1": (288, 64),
        "domain_logits": (64, 1),
    }
    features = layer_output(model, model.get_layer("features"))
    for name in ("class_dense_1", "domain_entrance"):
        assert layer_input(model, model.get_layer(name)) is features, name
    entrance = layer_output(model, model.get_layer("domain_entrance"))
    assert layer_input(model, model.get_layer("domain_dense_1")) is entrance
    assert [tuple(output.shape) for output in model.outputs] == [(None, 10), (None, 1)]


def test_every_layer_is_of_keras_and_none_keeps_statistics_of_a_batch() -> None:
    model = two_headed_cnn((8, 8, 1), 3)
    outputs = [layer_output(model, model.get_layer(name)) for name in ("features", "domain_entrance")]
    assert all(type(layer).__module__.startswith("keras.") for layer in model.layers)
    assert len(model.non_trainable_variables) == 0
    images = np.random.default_rng(0).normal(size=(6, 8, 8, 1)).astype(np.float32)
    for alone, among in zip(model(images[:1], training=True), model(images, training=True), strict=True):
        np.testing.assert_allclose(alone[0], among[0], atol=1e-6)
    features, entered = keras.Model(model.inputs[0], outputs)(images)
    np.testing.assert_array_equal(features, entered)  # the entrance hands on what it gets
    assert float(np.abs(features).max()) > 0.0


def test_its_options_are_taken_and_heads_may_be_bare() -> None:
    options = {"filters": [4, 6, 8], "kernel_size": 5, "class_units": [], "domain_units": [7, 6], "activation": "tanh"}
    model = two_headed_cnn((9, 8, 3), 5, **options)
    assert [layer.name for layer in model.layers if "dense" in layer.name] == ["domain_dense_1", "domain_dense_2"]
    assert model.get_layer("class_logits").kernel.shape == (8, 5)
    assert model.get_layer("conv_3").kernel.shape == (5, 5, 6, 8)
    assert model.get_layer("conv_1").activation is keras.activations.tanh
    assert model.get_layer("class_logits").activation is keras.activations.linear
