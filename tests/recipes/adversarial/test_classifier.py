"""A classifier out of a run directory measures as the run's own evaluation does, and changes nothing around it."""

from __future__ import annotations

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from hookline.recipes.adversarial.sample_quality import Classifier, load_classifier
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import UserError
from hookline.trainer.run.blueprint import from_config
from hookline.trainer.run.build_run import build_run
from hookline.trainer.run.finished import read_config, restore
from tests.support.command import run_small
from tests.support.refusals import assert_refused

SHAPE = (8, 8, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("classifier") / "run"
    summary = run_small("baseline", "+hooks=ema", "hooks.ema.decay=0.9", "trainer.epochs=3", run_dir=directory)
    return directory, summary


@pytest.fixture(scope="module")
def classifier(run) -> Classifier:
    return load_classifier(str(run[0]), input_shape=SHAPE, classes=10)


def examples_of(run) -> dict[str, np.ndarray]:
    split = restore(str(run[0]), read_config(str(run[0]))).held_out["test"]
    return split.examples(range(split.split.size))


def test_predictions_are_those_of_the_runs_best_evaluation(run, classifier) -> None:
    examples = examples_of(run)
    features, predicted = tf.function(classifier, autograph=False)(tf.constant(examples["inputs"]))
    assert features.dtype == tf.float32
    assert features.shape == (len(examples["targets"]), 16)
    assert predicted.dtype == tf.int32
    layers = classifier.model.layers
    last = max(place for place, layer in enumerate(layers) if isinstance(layer, keras.layers.Dense))
    logits = layers[last](features)  # features are the inputs of the last layer
    for layer in layers[last + 1 :]:
        logits = layer(logits, training=False)
    np.testing.assert_array_equal(tf.argmax(logits, axis=-1), predicted)
    accuracy = float(np.mean(predicted.numpy() == examples["targets"]))
    assert accuracy == pytest.approx(run[1]["test"]["metric/accuracy"], abs=1e-6)  # with the averages, of the best


def test_run_with_code_of_the_users_own_is_loaded_where_the_user_names_it(run, tmp_path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(run[0], directory)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    signal = {"_target_": "tests.support.signals.Signal", "steps": [1]}
    config |= {"plugins": ["tests.support"], "hooks": {**config["hooks"], "signal": signal}}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match=r"Expected plugins=\[tests.support\] beside it, if you trust it"):
        load_classifier(str(directory), input_shape=SHAPE, classes=10)
    load_classifier(str(directory), input_shape=SHAPE, classes=10, plugins=["tests.support"])


def test_what_is_no_run_of_a_classifier_of_this_data_is_refused(run, tmp_path) -> None:
    config = yaml.safe_load((run[0] / "config.yaml").read_text())
    for name, text in (
        ("empty", None),
        ("bare", config),
        ("task", {**config, "task": {"_target_": "hookline.recipes.retrieval.retrieval"}}),
    ):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(text))
    for directory, options, match in (
        (run[0], {"input_shape": (28, 28, 1)}, r"\[28, 28, 1\]"),
        (run[0], {"classes": 7}, "7 classes"),
        (tmp_path / "empty", {}, "no config.yaml"),
        (tmp_path / "bare", {}, "no checkpoints"),
        (tmp_path / "task", {}, "no classifier"),
    ):
        assert_refused(match, load_classifier, str(directory), **{"input_shape": SHAPE, "classes": 10, **options})


def test_plugins_of_the_command_line_hold_for_the_run_of_the_classifier(monkeypatch) -> None:
    class AskedError(Exception):
        pass

    def load(directory: str, *, plugins: tuple[str, ...], **others: object) -> None:
        raise AskedError(directory, plugins)

    monkeypatch.setattr("hookline.recipes.adversarial.sample_quality.load_classifier", load)
    overrides = ["data=digits", "model=dcgan", "task.classifier=there", "plugins=[tests.support]"]
    for recipe in ("gan", "sgan"):
        (job,) = preflight(parse_command([f"recipe={recipe}", *overrides]))
        with pytest.raises(AskedError) as asked:
            build_run(from_config(job.config))
        assert asked.value.args == ("there", ("tests.support",))
