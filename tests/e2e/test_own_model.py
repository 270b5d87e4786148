"""Runs with a user's own models, classes and data; mistakes in them are reported in one line."""

import csv
import json

import keras
import numpy as np
import pytest

from hookline.scripts.evaluate import main as evaluate
from hookline.scripts.export import main as export
from hookline.scripts.plan import main as plan
from hookline.scripts.predict import main as predict
from hookline.train import main
from tests.support.command import run_small
from tests.support.refusals import assert_one_line

MODULE = """
import keras

def small_cnn(*, input_shape, classes, width=4, dtype=None):
    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.Conv2D(width, 3, use_bias=False, name="conv_1"),
        keras.layers.BatchNormalization(name="batch_norm_1"),
        keras.layers.Conv2D(width, 3, use_bias=False, name="conv_2", dtype=dtype),
        keras.layers.BatchNormalization(name="batch_norm_2"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(classes, name="logits"),
    ])

def activated(*, input_shape, classes, end):
    layers = [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes, activation=end)]
    return keras.Sequential(layers)

def no_model(*, input_shape, classes):
    return input_shape

def recurrent(*, input_shape, classes):
    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.Reshape(input_shape[:2]),
        keras.layers.Bidirectional(keras.layers.LSTM(3)),
        keras.layers.Dense(classes),
    ])

def sequence(*, input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.GRU(3), keras.layers.Dense(classes)])

def ended(*, input_shape, classes, end="two", name="hidden", size=None):
    first = keras.Input((size, size, 1) if size else input_shape)
    others = [keras.Input(input_shape)] if end == "inputs" else []
    x = keras.layers.Flatten()(keras.layers.Add()([first, *others]) if others else first)
    logits, more = keras.layers.Dense(classes, name=name)(x), keras.layers.Dense(3)(x)
    return keras.Model([first, *others], [logits, more] if end == "two" else logits)

def raises(*, input_shape, classes):
    raise RuntimeError("nothing\\nhere")
"""
CUSTOM = ["recipe=bnn", "model=custom", "hooks.progress=null", "trainer.steps=3", "trainer.epochs=null"]
OWN = ["plugins=[my_models]", "model._target_=my_models.small_cnn"]
ENDED = [OWN[0], "model._target_=my_models.ended"]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "rows.npz", x_train=np.zeros((200, 7, 5), np.float32), y_train=np.arange(200) % 4)
    return tmp_path


def test_recurrent_network_trains_when_estimates_fail(own_module, monkeypatch):
    def fail(*_, **__):
        raise KeyError("unknown")

    given = ["recipe=baseline", *CUSTOM[1:], OWN[0], "model._target_=my_models.recurrent", "hooks.tensorboard=null"]
    assert plan(given) == 0
    for each in ("scripts.planning.trace.estimate_memory", "trainer.run.summary.summarize_network"):
        monkeypatch.setattr(f"hookline.{each}", fail)
    with pytest.warns(UserWarning, match="is left out"):
        assert main([*given, "run_dir=run"]) == 0
    assert json.loads((own_module / "run" / "summary.json").read_text())["status"] == "completed"


def test_mistake_in_a_custom_model_is_reported_in_one_line(own_module, capfd):
    for given, word in (
        ([], "model has no _target_"),
        (OWN[1:], "_target_=my_models.small_cnn is not allowed"),
        ([OWN[0], "model._target_=my_models.small_cn"], "'small_cnn'"),
        ([*OWN, "+model.widht=8"], "'width'"),
        ([*OWN, "+model.dtype=mixed_float16"], "'conv_2' computes in float16 without loss scaling"),
        ([OWN[0], "model._target_=my_models.no_model"], "type tuple"),
        ([*ENDED, "+model.end=inputs"], " and [8, 8, 1]. Expected [8, 8, 1]"),
        ([*ENDED, "+model.end=two"], "a list (0: [None, 10], 1: [None, 3])"),
        ([*ENDED, "+model.end=one", "+model.size=9"], "[9, 9, 1]. Expected [8, 8, 1]"),
        ([*ENDED, "+model.end=one", "+model.name=my layer"], "'my layer'"),
        ([OWN[0], "model._target_=my_models.raises"], "raised RuntimeError: nothing here"),
        ([OWN[0], "model._target_=my_models.sequence", "data=arrays", "data.path=rows.npz"], "[7, 5, 1]"),
    ):
        assert_one_line(main, [*CUSTOM, *given, "run_dir=never"], word, capfd)
        assert not (own_module / "never").exists()


def test_network_with_softmax_trains_like_one_with_logits_and_ships_with_softmax(own_module):
    options = ["recipe=baseline", *CUSTOM[1:], OWN[0], "model._target_=my_models.activated"]
    with pytest.warns(UserWarning, match=r"trains from the logits before its final softmax \('dense'\)"):
        assert main([*options, "+model.end=softmax", "run_dir=softmax"]) == 0
    assert main([*options, "+model.end=linear", "run_dir=linear"]) == 0
    test = {end: json.loads((own_module / end / "summary.json").read_text())["test"] for end in ("softmax", "linear")}
    assert test["softmax"] == test["linear"]
    assert export(["run=softmax", OWN[0]]) == 0
    shipped = keras.saving.load_model("softmax/export/model.keras")
    assert shipped.layers[-1].activation is keras.activations.softmax
    images = np.random.default_rng(0).uniform(-1.0, 1.0, (4, 8, 8, 1)).astype(np.float32)
    logits = shipped.layers[-1]
    logits = images.reshape(4, -1) @ logits.kernel.numpy() + logits.bias.numpy()
    np.testing.assert_allclose(shipped(images), keras.ops.softmax(logits), rtol=1e-5)

    (own_module / "bare.keras").write_bytes((own_module / "softmax/export/model.keras").read_bytes())
    for number, each in enumerate((["run=softmax"], ["model=bare.keras", "data=digits"])):
        assert evaluate([*each, OWN[0], f"output=judged_{number}"]) == 0
        overall = json.loads((own_module / f"judged_{number}/evaluation.json").read_text())["overall"]
        assert overall["negative_log_likelihood"] == pytest.approx(test["linear"]["loss/cross_entropy"], rel=1e-5)

    np.save(own_module / "images.npy", (images[..., 0] + 1.0) * 8.0)
    tables = []
    for model in ("softmax/export/model.keras", "linear"):
        assert predict([f"model={model}", "images=images.npy", OWN[0], "output=found.csv", "overwrite=true"]) == 0
        tables.append(np.genfromtxt(own_module / "found.csv", delimiter=",", skip_header=1))
    np.testing.assert_allclose(*tables, atol=2e-6)


CLASSES = """
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
def own_classes(tmp_path, monkeypatch):
    (tmp_path / "own_classes.py").write_text(CLASSES)
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


def test_exports_match_the_run_or_say_why_not(own_classes, capsys):
    train("model._target_=own_classes.subclassed")
    assert evaluate(["run=run", PLUGIN]) == 0
    expected = outputs("run")
    for form, name in (("saved_model", "model_saved_model"), ("keras", "model.keras")):
        assert export(["run=run", PLUGIN, f"format={form}"]) == 0
        np.testing.assert_allclose(outputs(f"run/export/{name}"), expected, atol=1e-5)
    capsys.readouterr()
    for form, line in (("packed", "is a Own."), ("sparse", "only Keras parts")):
        assert_one_line(export, ["run=run", PLUGIN, f"format={form}"], line, capsys)


def test_class_with_incomplete_config_is_refused_by_the_keras_format(own_classes, capsys):
    train("model._target_=own_classes.functional", "+model.kind=Forgetful")
    assert export(["run=run", PLUGIN, "format=keras", "tolerance=9"]) == 2
    assert "outputs differ from the run's" in capsys.readouterr().err
    assert not list(own_classes.glob("run/export/*"))


def test_run_with_xla_trains_on_rows_read_from_files(tmp_path):
    inputs = np.random.default_rng(0).integers(0, 60, (200, 8, 8))
    inputs[np.arange(200), :, np.arange(200) % 4 * 2] += 190  # a bright column tells the class
    (tmp_path / "own").mkdir()
    np.save(tmp_path / "own" / "inputs.npy", inputs.astype(np.uint8))
    np.save(tmp_path / "own" / "targets.npy", np.arange(200) % 4)
    given = ("data=arrays", f"data.path={tmp_path / 'own'}", "data.cache=none", "trainer.compile=on")
    given += ("model.units=[16]", "trainer.batch_size=16", "trainer.epochs=6")
    summary = run_small("baseline", *given, run_dir=tmp_path / "run")
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
    given = ["recipe=regression", "data=arrays", "data.path=patients.npz", "run_dir=run", "trainer.epochs=1"]
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
