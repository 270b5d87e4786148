"""Whole models from files as networks, built only from Keras's own classes and from plugins that the user names."""

from pathlib import Path

import keras
import numpy as np

from hookline.recipes.models.keras_file import keras_file
from tests.support.refusals import assert_refused

SHAPE, CLASSES = (8, 8, 1), 10
X = np.random.default_rng(0).uniform(-1, 1, (4, *SHAPE)).astype(np.float32)
MODULE = """
import keras

class Twice(keras.layers.Layer):
    def call(self, x):
        return 2.0 * x
"""


def saved(path: Path, *extra: keras.Layer, classes: int = CLASSES) -> keras.Model:
    head = keras.layers.Dense(classes, "softmax", name="head")
    model = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), *extra, keras.layers.Dense(6, "relu"), head])
    model.save(path)
    return model


def test_model_has_weights_of_file_or_new_ones(tmp_path: Path):
    model = saved(tmp_path / "a.keras")
    own = keras_file(SHAPE, CLASSES, path=str(tmp_path / "a.keras"))
    np.testing.assert_array_equal(own(X), model(X))
    fresh = keras_file(SHAPE, CLASSES, path=str(tmp_path / "a.keras"), weights=False)
    assert [(each.name, each.shape) for each in fresh.weights] == [(each.name, each.shape) for each in own.weights]
    assert not np.allclose(fresh(X), model(X), atol=1e-3)


def test_new_head_has_classes_of_data(tmp_path: Path):
    model = saved(tmp_path / "a.keras", classes=1000)
    own = keras_file(SHAPE, CLASSES, path=str(tmp_path / "a.keras"), new_head=True)
    assert own.layers[-1].name == "outputs"
    assert own(X).shape == (4, CLASSES)
    np.testing.assert_array_equal(own.layers[-2].kernel, model.layers[-2].kernel)
    keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten()]).save(tmp_path / "b.keras")
    path = str(tmp_path / "b.keras")
    assert_refused("does not end in one dense layer", keras_file, SHAPE, CLASSES, path=path, new_head=True)


def test_file_with_lambda_layer_is_refused(tmp_path: Path):
    saved(tmp_path / "a.keras", keras.layers.Lambda(lambda x: x))
    message = r"a.keras: Keras cannot load it in safe mode: .*init_from="
    assert_refused(message, keras_file, SHAPE, CLASSES, path=str(tmp_path / "a.keras"))


def test_custom_class_is_loaded_only_from_a_named_plugin(tmp_path: Path, monkeypatch):
    (tmp_path / "keras_file_plugin.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    model = saved(tmp_path / "a.keras", __import__("keras_file_plugin").Twice())
    assert_refused("Twice.*plugins=", keras_file, SHAPE, CLASSES, path=str(tmp_path / "a.keras"))
    own = keras_file(SHAPE, CLASSES, path=str(tmp_path / "a.keras"), packages=["keras_file_plugin"])
    np.testing.assert_array_equal(own(X), model(X))


def test_wrong_files_and_class_counts_are_refused_with_remedy(tmp_path: Path):
    saved(tmp_path / "a.keras", classes=1000)
    (tmp_path / "a.h5").write_text("")
    (tmp_path / "b.keras").write_text("no zip")
    for name, words in (
        ("a.keras", "1000 outputs. Expected 10, .*model.new_head=true"),
        ("a.h5", "is not a .keras file.*init_from="),
        ("b.keras", "cannot be read"),
        ("c.keras", "does not exist"),
    ):
        assert_refused(words, keras_file, SHAPE, CLASSES, path=str(tmp_path / name))
