"""Runs on disk are loaded as trainers."""

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest

import hookline
from hookline.deploy.inference.card import read_card
from hookline.scripts import evaluate, export, sensitivity, verify
from tests.support.door import by_command_line, held_out, images, small_model, small_trainer
from tests.support.refusals import assert_refused

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
README = Path(__file__).parents[2] / "hookline" / "README.md"
QUIET = dict.fromkeys(("tensorboard", "pictures", "projector"))


def test_command_line_run_loads_as_a_trainer(tmp_path):
    summary = by_command_line("prune", folder=tmp_path)
    trainer = hookline.load(tmp_path / "run")
    assert trainer.evaluate(*held_out())["accuracy"] == pytest.approx(summary["test"]["metric/accuracy"])
    inputs, _ = held_out()
    np.testing.assert_allclose(trainer.predict(inputs), np.asarray(trainer.model(inputs)), atol=1e-5)
    assert_refused("train.py resume=", trainer.fit, *held_out())
    assert "step" in repr(trainer)
    trainer.export(tmp_path / "net.keras")
    assert read_card(tmp_path / "net.keras").checkpoint == "best"


def scheduled():
    rate = keras.optimizers.schedules.CosineDecay(0.01, 100)
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Muon(rate))


@pytest.mark.parametrize(
    ("hook", "optimizer"), [("ema", lambda: "adam"), ({"slow": hookline.hooks.Ema(decay=0.9)}, scheduled)]
)
def test_python_run_continues_in_another_trainer(hook, optimizer, tmp_path, capsys):
    x, y = images()["x_train"], images()["y_train"]
    given = {"batch_size": 16, "verbose": 0}
    first = small_trainer(hook, QUIET, run_dir=tmp_path / "run", optimizer=optimizer())
    first.fit(x, y, **given)
    assert_refused("another trainer: hooks.", hookline.load, tmp_path / "run", hooks=[hookline.hooks.Ema(decay=0.5)])
    assert hookline.load(tmp_path / "run", hooks=[hook]).step == 5
    loaded = hookline.load(tmp_path / "run")
    assert loaded.history == first.history
    np.testing.assert_array_equal(loaded.predict(x), first.predict(x))
    assert loaded.fit(x, y, **given).summary["digest"] == first.fit(x, y, **given).summary["digest"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 10
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["packages"]["hookline"] == hookline.__version__
    assert verify.main([f"run={tmp_path / 'run'}"]) == 0
    assert_refused("was trained from Python", hookline.run, f"resume={tmp_path / 'run'}")
    for script in (evaluate, export, sensitivity):
        assert script.main([f"run={tmp_path / 'run'}"]) == 2
        assert "hookline.load" in capsys.readouterr().err


def test_model_with_adapted_normalization_loads_and_exports(tmp_path):
    x, y = 40.0 + 9.0 * images()["x_train"], images()["y_train"]
    norm = keras.layers.Normalization()
    norm.adapt(x)
    layers = [keras.Input(x.shape[1:]), norm, keras.layers.Flatten(), keras.layers.Dense(3, use_bias=False)]
    first = small_trainer(QUIET, model=keras.Sequential(layers), run_dir=tmp_path / "run")
    first.fit(x, y, batch_size=16, verbose=0)
    loaded = hookline.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.predict(x), first.predict(x), atol=1e-5)
    files = [each.export(tmp_path / f"{each.step}_{n}.keras", x=x, y=y) for n, each in enumerate((first, loaded))]
    assert len({each.with_name(f"{each.name}.json").read_text() for each in files}) == 1
    assert_refused("Expected x= and y=", loaded.export, tmp_path / "other.keras")
    np.testing.assert_allclose(first.model.predict(x, verbose=0), first.predict(x), atol=1e-5)
    first.export(tmp_path / "saved", format="saved_model")  # compared with the trainer, on all examples


def sequential():
    layers = [keras.Input((12, 12, 1)), keras.layers.Flatten(), keras.layers.Dropout(0.2)]
    return keras.Sequential([*layers, keras.layers.Dense(4, "relu"), keras.layers.Dense(3, "softmax")])


def test_run_matches_its_model_despite_numbered_layer_names(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(48, 12, 12, 1)).astype("float32"), np.arange(48) % 3
    common = {"loss": "sparse_categorical_crossentropy", "run_dir": tmp_path / "run"}
    first = hookline.Trainer(sequential(), hooks=["prune", QUIET], **common)
    first.fit(x, y, epochs=1, batch_size=16, verbose=0)
    np.testing.assert_array_equal(hookline.load(tmp_path / "run").predict(x), first.predict(x))
    again = hookline.load(tmp_path / "run", model=sequential())  # "dense_2" by now
    np.testing.assert_array_equal(again.predict(x), first.predict(x))
    resumed = hookline.Trainer(sequential(), hooks=["prune", QUIET], **common)
    resumed.fit(x, y, epochs=1, batch_size=16, verbose=0, resume=True)
    np.testing.assert_array_equal(resumed.predict(x), first.predict(x))


def test_loaded_run_restores_best_evaluation_and_hook_state(tmp_path):
    x, y = images()["x_train"], images()["y_train"]
    given = {"batch_size": 16, "epochs": 3, "verbose": 0, "validation_data": held_out()}
    watching = [{"reduce_on_plateau": {"patience": 9}}, QUIET]
    first = small_trainer(*watching, run_dir=tmp_path / "run", optimizer=keras.optimizers.SGD(0.1))
    best = first.fit(x, y, **given).summary["best"]
    loaded = hookline.load(tmp_path / "run")
    hooks = ({each.name: each for each in trainer._state.hooks} for trainer in (first, loaded))
    states = [each["reduce_on_plateau"].state_dict() for each in hooks]
    assert states[0] == states[1]
    loaded._state.trainer.networks["model"].optimizer.learning_rate.assign(1e4)
    assert loaded.fit(x, y, **given).summary["best"] == best


def test_custom_step_in_readme_runs(capsys):
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "prepare" in each]
    exec(compile(code, str(README), "exec"), {"__name__": "example"})
    assert " 16 {'loss'" in capsys.readouterr().out


def own_loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


def test_compiled_model_ships_without_compile_state(tmp_path):
    model, data = small_model(), images()
    model.compile("adam", own_loss)
    model.evaluate(*held_out(), verbose=0)
    trainer = small_trainer("prune", QUIET, model=model, run_dir=tmp_path / "run")
    trainer.fit(data["x_train"], data["y_train"], batch_size=16, verbose=0)
    assert not trainer.model.compiled
    assert trainer.export(tmp_path / "model.sparse.safetensors", format="sparse").exists()
    assert model.compiled  # the user's own model is unchanged
    np.testing.assert_array_equal(
        hookline.load(tmp_path / "run").predict(data["x_test"]), trainer.predict(data["x_test"])
    )


class TwoInputs(keras.Model):
    """Take a dict of inputs that the model does not declare."""

    def __init__(self):
        super().__init__()
        self.table, self.head = keras.layers.Embedding(5, 4), keras.layers.Dense(3)

    def call(self, inputs):
        return self.head(keras.ops.concatenate([self.table(inputs["id"]), inputs["x"]], axis=-1))


def test_subclassed_model_with_several_inputs_loads(tmp_path):
    x = {"x": np.random.default_rng(0).normal(size=(24, 2)).astype("float32"), "id": np.arange(24) % 5}
    model = TwoInputs()
    model(x)
    trainer = hookline.Trainer(model, loss="sparse_categorical_crossentropy", hooks=["ema"], run_dir=tmp_path / "run")
    trainer.fit(x, np.arange(24) % 3, batch_size=8, verbose=0)
    other = TwoInputs()
    other(x)
    np.testing.assert_array_equal(hookline.load(tmp_path / "run", model=other).predict(x), trainer.predict(x))
