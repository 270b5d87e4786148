"""Classes of the user's own, from training to predictions: exports give the run's outputs, or one line says why not."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from hookline.scripts.evaluate import main as evaluate
from hookline.scripts.export import main as export
from hookline.scripts.predict import main as predict
from hookline.train import main

MODULE = """
import keras

class Scale(keras.layers.Layer):
    def __init__(self, power=1.0, **options):
        super().__init__(**options)
        self.power = power

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def call(self, x):
        return keras.ops.matmul(x, self.kernel) ** self.power

    def get_config(self):
        return {**super().get_config(), "power": self.power}

class Forgetful(Scale):
    def get_config(self):
        return keras.layers.Layer.get_config(self)

class Own(keras.Model):
    def __init__(self, classes, kind="Scale", **options):
        super().__init__(**options)
        self.classes, self.kind = classes, kind
        self.flat, self.drop = keras.layers.Flatten(), keras.layers.Dropout(0.5)
        self.scale, self.logits = globals()[kind](2.0), keras.layers.Dense(classes)

    def call(self, x):
        return self.logits(self.drop(self.scale(self.flat(x))))

    def get_config(self):
        return {**super().get_config(), "classes": self.classes, "kind": self.kind}

def subclassed(*, input_shape, classes):
    model = Own(classes)
    model(keras.Input(input_shape))
    return model

def functional(*, input_shape, classes, kind="Scale"):
    inputs = keras.Input(input_shape)
    drop = keras.layers.Dropout(0.5)
    x = drop(globals()[kind](2.0)(keras.layers.Flatten()(inputs)))
    drop.rate = 0.0
    return keras.Model(inputs, keras.layers.Dense(classes)(x))
"""
PLUGIN = "plugins=[own_classes]"


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_classes.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).integers(0, 17, (9, 8, 8)).astype(np.uint8))
    return tmp_path


def train(*given):
    limits = ["trainer.steps=3", "trainer.epochs=null", "hooks.progress=null", "hooks.tensorboard=null"]
    assert main(["recipe=baseline", "model=custom", PLUGIN, *limits, "run_dir=run", *given]) == 0


def outputs(model):
    assert predict([f"model={model}", PLUGIN, "images=rows.npy", "outputs=true", "output=p.csv", "overwrite=true"]) == 0
    with open("p.csv") as file:
        return np.array([row[1:] for row in csv.reader(file)][1:], float)


def test_exports_give_the_outputs_of_the_run_or_say_why_not(own_module, capsys):
    train("model._target_=own_classes.subclassed")
    assert evaluate(["run=run", PLUGIN]) == 0
    expected = outputs("run")
    for form, name in (("saved_model", "model_saved_model"), ("keras", "model.keras")):
        assert export(["run=run", PLUGIN, f"format={form}"]) == 0
        np.testing.assert_allclose(outputs(f"run/export/{name}"), expected, atol=1e-5)
    capsys.readouterr()
    for form, line in (("packed", "is a Own."), ("sparse", "parts of Keras alone")):
        assert export(["run=run", PLUGIN, f"format={form}"]) == 2
        assert line in capsys.readouterr().err


def test_a_class_with_a_wrong_config_is_refused_by_the_keras_format(own_module, capsys):
    train("model._target_=own_classes.functional", "+model.kind=Forgetful")
    assert export(["run=run", PLUGIN, "format=keras", "tolerance=9"]) == 2
    assert "returns other outputs than the run" in capsys.readouterr().err
    assert not list(own_module.glob("run/export/*"))
    assert export(["run=run", PLUGIN, "format=saved_model"]) == 0
