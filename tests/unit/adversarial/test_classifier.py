"""A classifier out of a run directory measures as the run's own evaluation does, and changes nothing around it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from recipes.adversarial.class_histogram import class_shares, share_distances
from recipes.adversarial.classifier import Classifier, load_classifier
from recipes.adversarial.frechet_distance import frechet_distance, moments
from tests.support.command import run_small
from trainer.config.command import parse_command
from trainer.config.preflight import preflight
from trainer.errors import UserError
from trainer.run.assembly import assemble
from trainer.run.finished import read_config, restore

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
    split = restore(str(run[0]), read_config(str(run[0]))).parts.evaluated["test"]
    return split.examples(range(split.split.size))


def test_predictions_are_those_of_the_runs_best_evaluation(run, classifier) -> None:
    examples = examples_of(run)
    features, predicted = tf.function(classifier, autograph=False)(tf.constant(examples["inputs"]))
    assert features.dtype == tf.float32
    assert features.shape == (len(examples["targets"]), classifier.width) == (len(examples["targets"]), 16)
    assert predicted.dtype == tf.int32
    accuracy = float(np.mean(predicted.numpy() == examples["targets"]))
    assert accuracy == pytest.approx(run[1]["test"]["metric/accuracy"], abs=1e-6)  # with the averages, of the best


def test_features_are_the_inputs_of_the_last_layer(run, classifier) -> None:
    images = tf.constant(examples_of(run)["inputs"][:5])
    features, predicted = classifier(images)
    last = [layer for layer in classifier.model.layers if isinstance(layer, keras.layers.Dense)][-1]
    logits = last(features)
    for layer in classifier.model.layers[classifier.model.layers.index(last) + 1 :]:
        logits = layer(logits, training=False)
    np.testing.assert_array_equal(tf.argmax(logits, axis=-1), predicted)


def test_measures_tell_real_images_from_noise(run, classifier) -> None:
    examples = examples_of(run)
    images, noise = examples["inputs"], np.random.default_rng(0).uniform(-1, 1, examples["inputs"].shape)
    half = len(images) // 2

    def measures(first, second):
        (one, labels), (two, others) = classifier(tf.constant(first)), classifier(tf.constant(second, tf.float32))
        shares = share_distances(class_shares(labels, 10), class_shares(others, 10))
        return float(frechet_distance(moments(one), moments(two))), float(shares["total_variation"])

    distance, variation = measures(images[:half], images[half:])
    far_distance, far_variation = measures(images[:half], noise[half:])
    assert distance < 0.3 * far_distance
    assert variation < far_variation


def test_run_around_it_is_built_as_without_it(run) -> None:
    def drawn(*, with_classifier: bool) -> tuple:
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        first = keras.layers.Dense(4)
        if with_classifier:
            load_classifier(str(run[0]), input_shape=SHAPE, classes=10)
        second = keras.layers.Dense(4)
        return first.name, second.name

    assert drawn(with_classifier=True) == drawn(with_classifier=False) == ("dense", "dense_1")


def test_random_numbers_afterwards_follow_the_seed_of_the_run_and_not_of_the_classifier(run) -> None:
    def weights(seed: int) -> np.ndarray:
        keras.utils.set_random_seed(seed)
        load_classifier(str(run[0]), input_shape=SHAPE, classes=10)
        layer = keras.layers.Dense(4)
        layer.build((None, 3))
        return np.concatenate([np.ravel(layer.kernel), [random.random()]])

    first = weights(1)
    np.testing.assert_array_equal(first, weights(1))
    assert not np.isclose(first, weights(2)).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_shape": (28, 28, 1)}, r"10 classes of inputs \[8, 8, 1\] apart.*10 classes of inputs \[28, 28, 1\]"),
        ({"classes": 7}, r"10 classes of .*with 7 classes of inputs \[8, 8, 1\]"),
    ],
)
def test_other_data_is_refused(run, arguments, message) -> None:
    with pytest.raises(UserError, match=message):
        load_classifier(str(run[0]), **{"input_shape": SHAPE, "classes": 10, **arguments})


def test_directory_that_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match=r"classifier=.*no config.yaml that can be read. Expected a run directory"):
        load_classifier(str(tmp_path), input_shape=SHAPE, classes=10)


def test_run_of_another_task_is_refused_before_it_is_built(run, tmp_path) -> None:
    config = yaml.safe_load((run[0] / "config.yaml").read_text())
    config["task"] = {"_target_": "recipes.retrieval.retrieval"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match="this run trained no classifier. Expected the directory of a run of recipe="):
        load_classifier(str(tmp_path), input_shape=SHAPE, classes=10)


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


@pytest.mark.parametrize("recipe", ["gan", "sgan"])
def test_plugins_of_the_command_line_hold_for_the_run_of_the_classifier(recipe, monkeypatch) -> None:
    class AskedError(Exception):
        pass

    def load(directory: str, *, plugins: tuple[str, ...], **others: object) -> None:
        raise AskedError(directory, plugins)

    monkeypatch.setattr("recipes.adversarial.sample_quality.load_classifier", load)
    overrides = [f"recipe={recipe}", "data=digits", "model=dcgan", "task.classifier=there", "plugins=[tests.support]"]
    (job,) = preflight(parse_command(overrides))
    with pytest.raises(AskedError) as asked:
        assemble(job.config)
    assert asked.value.args == ("there", ("tests.support",))


def test_run_without_checkpoints_is_refused(run, tmp_path) -> None:
    shutil.copy(run[0] / "config.yaml", tmp_path)
    with pytest.raises(UserError, match=r"^classifier=.* has no checkpoints"):
        load_classifier(str(tmp_path), input_shape=SHAPE, classes=10)
