"""Runs on a user's own data, read batch by batch: XLA is not in the way, and errors are one line."""

from __future__ import annotations

import csv

import keras
import numpy as np
import pytest

from hookline.scripts.evaluate import main as evaluate
from hookline.scripts.export import main as export
from hookline.scripts.predict import main as predict
from hookline.train import main
from tests.support.command import run_small

SMALL = "model.units=[16]"


def test_rows_that_are_read_from_a_file_train_and_evaluate_beside_xla(tmp_path):
    inputs = np.random.default_rng(0).integers(0, 60, (200, 8, 8))
    inputs[np.arange(200), :, np.arange(200) % 4 * 2] += 190  # a bright column tells the class
    (tmp_path / "own").mkdir()
    np.save(tmp_path / "own" / "inputs.npy", inputs.astype(np.uint8))
    np.save(tmp_path / "own" / "targets.npy", np.arange(200) % 4)
    given = ("data=arrays", f"data.path={tmp_path / 'own'}", "data.cache=none", "trainer.compile=on", SMALL)
    summary = run_small("baseline", *given, "trainer.batch_size=16", "trainer.epochs=6", run_dir=tmp_path / "run")
    assert summary["status"] == "completed"
    assert summary["test"]["metric/accuracy"] > 0.8
    assert (tmp_path / "run" / "pictures" / "input_training_examples.png").exists()


NETWORK = """
import keras

def patient(*, input_shape):
    scan, facts = (keras.Input(input_shape[name], name=name) for name in ("scan", "facts"))
    x = keras.layers.Concatenate()([keras.layers.Flatten()(scan), facts])
    age, ill = keras.layers.Dense(1, name="age")(x), keras.layers.Dense(1, "sigmoid", name="ill")(x)
    return keras.Model([facts, scan], {"age": age, "ill": ill})
"""


@pytest.mark.filterwarnings("ignore:Network 'model' trains from the logits", "ignore:model.units")
def test_several_inputs_and_outputs_train_evaluate_and_predict_from_files(tmp_path, monkeypatch, capfd):
    rng = np.random.default_rng(0)
    scan, facts = rng.integers(0, 256, (80, 4, 4), np.uint8), rng.normal(size=(80, 3))
    own = {"y_train_age": facts.sum(axis=1), "y_train_ill": (facts[:, 0] > 0).astype(int)}
    np.savez(tmp_path / "patients.npz", x_train_scan=scan, x_train_facts=facts, **own)
    np.savez(tmp_path / "new.npz", facts=facts[:5], scan=scan[:5])
    (tmp_path / "own_networks.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = ["recipe=regression", "data=arrays", "data.path=patients.npz", "run_dir=run", "trainer.epochs=8"]
    network = ["model=custom", "model._target_=own_networks.patient", "plugins=[own_networks]"]
    losses = ["task.loss={age: mean_squared_error, ill: binary_crossentropy}", "task.metrics={ill: [AUC]}"]
    assert main([*given, *losses, "model=mlp"]) == 2
    assert "inputs scan, facts, and mlp takes one. Expected model=custom" in capfd.readouterr().err
    assert main([*given, *network]) == 2
    assert "task.loss={age: mean_squared_error, ill: mean_squared_error}" in capfd.readouterr().err
    assert main([*given, *network, *losses]) == 0
    assert export(["run=run", network[2]]) == 0
    assert evaluate(["run=run", network[2]]) == 0
    assert "ill_AUC" in capfd.readouterr().out
    assert predict(["model=run/export/model.keras", "images=new.npz", "outputs=true", "output=found.csv"]) == 0
    found = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
    model = keras.saving.load_model(tmp_path / "run" / "export" / "model.keras")
    expected = model({"scan": scan[:5, ..., None] / 127.5 - 1, "facts": facts[:5]})
    for name, values in expected.items():
        np.testing.assert_allclose([float(row[f"{name}_0"]) for row in found], values[:, 0], atol=1e-5)
    assert predict(["model=run/export/model.keras", "images=patients.npz", "outputs=true"]) == 2
    assert "Expected one of x_test_" in capfd.readouterr().err
