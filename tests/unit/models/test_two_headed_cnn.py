"""The network with two heads: one body, a layer that does nothing before the second head, and what it refuses."""

from __future__ import annotations

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
from omegaconf import OmegaConf

from recipes.models.two_headed_cnn import two_headed_cnn
from trainer.errors import UserError
from trainer.graph import layer_input, layer_output

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "model" / "two_headed_cnn.yaml"


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
    assert all(type(layer).__module__.startswith("keras.") for layer in model.layers)
    assert len(model.non_trainable_variables) == 0
    images = np.random.default_rng(0).normal(size=(6, 8, 8, 1)).astype(np.float32)
    for alone, among in zip(model(images[:1], training=True), model(images, training=True), strict=True):
        np.testing.assert_allclose(alone[0], among[0], atol=1e-6)


def test_the_entrance_hands_on_what_it_gets() -> None:
    model = two_headed_cnn((8, 8, 1), 3)
    inner = keras.Model(
        model.inputs[0], [layer_output(model, model.get_layer(name)) for name in ("features", "domain_entrance")]
    )
    features, entered = inner(np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32))
    np.testing.assert_array_equal(features, entered)
    assert float(np.abs(features).max()) > 0.0


def test_its_options_are_taken_and_heads_may_be_bare() -> None:
    model = two_headed_cnn(
        (9, 8, 3), 5, filters=[4, 6, 8], kernel_size=5, class_units=[], domain_units=[7, 6], activation="tanh"
    )
    assert [layer.name for layer in model.layers if "dense" in layer.name] == ["domain_dense_1", "domain_dense_2"]
    assert model.get_layer("class_logits").kernel.shape == (8, 5)
    assert model.get_layer("conv_3").kernel.shape == (5, 5, 6, 8)
    assert model.get_layer("conv_1").activation is model.get_layer("domain_dense_2").activation
    assert model.get_layer("conv_1").activation is keras.activations.tanh
    for name in ("class_logits", "domain_logits"):
        assert model.get_layer(name).activation is keras.activations.linear
    bare = two_headed_cnn((8, 8, 1), 5, domain_units=())
    assert layer_input(bare, bare.get_layer("domain_logits")) is layer_output(bare, bare.get_layer("domain_entrance"))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3, 4, 1), {}, r"two_headed_cnn got inputs of shape .3, 4, 1.*at least 4 pixels a side for 2 blocks"),
        ((64,), {}, r"Expected images .height, width, channels."),
        ((8, 8, 1), {"filters": []}, r"Invalid filters: \[\]. Expected a list of whole numbers above 0"),
        ((8, 8, 1), {"filters": 16}, "Invalid filters: 16"),
        ((8, 8, 1), {"filters": [True]}, "Invalid filters"),
        ((8, 8, 1), {"class_units": [0]}, r"Invalid class_units: \[0\]. Expected a list, perhaps empty, of whole"),
        ((8, 8, 1), {"domain_units": [1.5]}, r"Invalid domain_units: \[1.5\]"),
        ((8, 8, 1), {"kernel_size": 0}, "Invalid kernel_size: 0. Expected a whole number above 0"),
        ((8, 8, 1), {"activation": "rellu"}, "Did you mean 'relu'"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(shape: tuple[int, ...], options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        two_headed_cnn(shape, 10, **options)
    assert "\n" not in str(error.value)


def test_the_config_lists_every_argument_with_its_default() -> None:
    config = OmegaConf.to_container(OmegaConf.load(CONFIG))
    assert config.pop("_target_") == "recipes.models.two_headed_cnn.two_headed_cnn"
    parameters = inspect.signature(two_headed_cnn).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert config == {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
