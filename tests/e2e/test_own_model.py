"""Runs of a user's own model, by its import path alone; what is wrong with it is one line."""

from __future__ import annotations

import json

import pytest

from train import main

MODULE = """
import keras

def small_cnn(*, input_shape, classes, width=4):
    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.Conv2D(width, 3, use_bias=False, name="conv_1"),
        keras.layers.BatchNormalization(name="batch_norm_1"),
        keras.layers.Conv2D(width, 3, use_bias=False, name="conv_2"),
        keras.layers.BatchNormalization(name="batch_norm_2"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(classes, name="logits"),
    ])

def no_model(*, input_shape, classes):
    return input_shape

def unbuilt(*, classes):
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(classes)])
"""
CUSTOM = ["recipe=bnn", "model=custom", "hooks.progress=null", "trainer.steps=3", "trainer.epochs=null"]
OWN = ["plugins=[my_models]", "model._target_=my_models.small_cnn"]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_function_of_the_users_own_builds_the_model_and_takes_its_arguments(own_module) -> None:
    assert main([*CUSTOM, *OWN, "+model.width=8", "run_dir=run"]) == 0
    summary = json.loads((own_module / "run" / "summary.json").read_text())
    layers = {row["layer"]: row for row in summary["networks"]["model"]["layers"]}
    assert layers["conv_1"]["output"] == [6, 6, 8]
    assert (layers["conv_1"]["weight_bits"], layers["conv_2"]["weight_bits"]) == (32, 1)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([], "Error: model has no _target_. Expected model._target_=<import path of what it builds>."),
        (OWN[1:], "Error: _target_=my_models.small_cnn is not allowed. Expected an import path within one of"),
        ([OWN[0], "model._target_=my_models.small_cn"], "'my_models' has no 'small_cn'. Did you mean 'small_cnn'?"),
        ([*OWN, "+model.widht=8"], "Unknown argument 'widht' for my_models.small_cnn. Did you mean 'width'?"),
        ([OWN[0], "model._target_=my_models.no_model"], "returned a value of type tuple. Expected keras's Model."),
        ([OWN[0], "model._target_=my_models.unbuilt"], "is not built, so it has no variables. Expected one"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(own_module, capfd, given, line) -> None:
    assert main([*CUSTOM, *given, "run_dir=never"]) == 2
    printed = capfd.readouterr().err.strip().splitlines()
    assert line in printed[-1]
    assert len(printed) == 1
    assert not (own_module / "never").exists()
