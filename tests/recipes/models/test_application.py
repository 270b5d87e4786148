"""Networks of keras.applications get the inputs of Keras's own preprocessing, whatever the data's range."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from hookline.recipes.models.application import _preprocessed, application
from hookline.trainer.errors import UserError
from hookline.trainer.input.preparation import Preparation, pixel_preparation
from tests.support.spread import spread

SHAPE, CLASSES = (32, 32, 3), 10
FORM = pixel_preparation(SHAPE, 255)
PIXELS = np.random.default_rng(0).integers(0, 256, (3, *SHAPE)).astype(np.float32)
MODES = ("VGG16", "DenseNet121", "MobileNet", "EfficientNetB0")


@pytest.mark.parametrize("name", MODES)
def test_preprocessing_layers_match_preprocess_input(name: str):
    function = getattr(keras.applications, name)
    wanted = sys.modules[function.__module__].preprocess_input(PIXELS.copy())
    for black, white in ((-1.0, 1.0), (0.0, 1.0), (0.0, 255.0), (-0.5, 3.0)):
        inputs = keras.Input(SHAPE)
        model = keras.Model(inputs, _preprocessed(inputs, function, (black, white)))
        given = PIXELS / 255 * (white - black) + black
        np.testing.assert_allclose(model(given), wanted, atol=2e-4 if np.abs(wanted).max() > 10 else 2e-6)


def test_gray_images_are_repeated_in_three_channels():
    inputs = keras.Input((32, 32, 1))
    function = keras.applications.VGG16
    model = keras.Model(inputs, _preprocessed(inputs, function, (0.0, 255.0)))
    wanted = sys.modules[function.__module__].preprocess_input(np.repeat(PIXELS[..., :1], 3, axis=-1))
    np.testing.assert_allclose(model(PIXELS[..., :1]), wanted, atol=1e-4)


def test_options_reach_keras_and_the_head_has_the_classes():
    model = application(
        SHAPE, 7, name="MobileNet", preparation=FORM, options={"alpha": 0.25}, pooling="max", dropout=0.2
    )
    assert model.output_shape == (None, 7)
    assert [layer.name for layer in model.layers[-2:]] == ["dropout", "outputs"]
    assert model.get_layer("conv1").filters == 8
    assert application(SHAPE, 7, name="MobileNet", input_range=[0, 1], options={"alpha": 0.25}).built


def test_invalid_arguments_are_refused():
    for given, words in (
        ({"name": "MobileNetV3Smal"}, "Did you mean 'MobileNetV3Small'"),
        ({"input_shape": (64,)}, "images"),
        ({"pooling": "mean"}, "'avg'|avg"),
        ({"preparation": None}, "model.input_range"),
        ({"preparation": Preparation(SHAPE)}, "model.input_range"),
        ({"input_range": [1.0, 0.0]}, "rising"),
        ({"weights": "nowhere.h5"}, "nowhere.h5"),
    ):
        options = {"input_shape": SHAPE, "classes": 3, "name": "MobileNetV3Small", "preparation": FORM, **given}
        with pytest.raises(UserError, match=words):
            application(**options)


def test_failed_download_is_refused_with_how_to_use_a_file(monkeypatch):
    def fail(*args, **kwargs):
        raise Exception("URL fetch failure on https://...: None -- [Errno -2] Name or service not known")

    module = sys.modules[keras.applications.MobileNet.__module__]
    monkeypatch.setattr(module.file_utils, "get_file", fail)
    with pytest.raises(UserError, match=r"imagenet cannot be downloaded: URL fetch failure.*model.weights=<file>"):
        application(SHAPE, 3, name="MobileNet", preparation=FORM, weights="imagenet")


@pytest.mark.full
def test_weights_file_sets_all_layers_except_head(tmp_path: Path):
    base = keras.applications.MobileNet(include_top=False, weights=None, pooling="avg", input_shape=SHAPE, alpha=0.25)
    spread(base)
    base.save(tmp_path / "a.keras")
    options = {"name": "MobileNet", "preparation": FORM, "options": {"alpha": 0.25}}
    model = application(SHAPE, CLASSES, **options, weights=str(tmp_path / "a.keras"))
    head = model.get_layer("outputs")
    seen = sys.modules[keras.applications.MobileNet.__module__].preprocess_input(PIXELS.copy())
    wanted = np.asarray(base(seen)) @ head.kernel.numpy() + head.bias.numpy()
    np.testing.assert_allclose(model(PIXELS * np.float32(2 / 255) - 1), wanted, atol=1e-5 * np.abs(wanted).max())
    with pytest.raises(UserError, match="No layer of model.weights|has no weights for"):
        application(SHAPE, CLASSES, name="VGG16", preparation=FORM, weights=str(tmp_path / "a.keras"))
