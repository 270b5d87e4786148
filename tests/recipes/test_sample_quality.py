"""Quality of samples: coverage of modes, distances of features and class shares, and the classifier that is used."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline.recipes.sample_quality import (
    ImageQuality,
    class_shares,
    frechet_distance,
    load_classifier,
    mode_metrics,
    moments,
    share_distances,
)
from hookline.trainer.input.preparation import Preparation, pixel_preparation
from hookline.trainer.run.finished import read_config, restore
from tests.support.command import run_small
from tests.support.refusals import assert_refused


class Brightness:
    """Stand in for a classifier of dark and bright images; its features are mean and deviation."""

    def __call__(self, images):
        mean = tf.reduce_mean(images, axis=(1, 2, 3))
        features = tf.stack([mean, tf.math.reduce_std(images, axis=(1, 2, 3))], axis=1)
        return features, tf.stack([-mean, mean], axis=1)


def test_image_quality_uses_features_and_classes_of_classifier():
    quality = ImageQuality(2, Brightness())
    images = tf.random.stateless_uniform([60, 8, 8, 1], [1, 2], -1.0, 1.0)
    targets = tf.cast(tf.reduce_mean(images, axis=(1, 2, 3)) > 0.0, tf.int64)
    collected = quality.collect({"inputs": images, "targets": targets})
    assert {name: tuple(value.shape) for name, value in collected.items()} == {"features": (60, 2), "targets": (60,)}
    same, brighter = quality.metrics(images, collected), quality.metrics(images * 0.1 + 0.9, collected)
    assert float(same["frechet_distance"]) == pytest.approx(0.0, abs=1e-4)
    assert float(same["class_total_variation"]) == pytest.approx(0.0, abs=1e-6)
    assert float(brighter["frechet_distance"]) > 0.5
    assert float(brighter["class_missing"]) == 1.0
    assert set(same) == {"frechet_distance", "class_total_variation", "class_kl", "class_missing"}


CLASSES = 5
LABELS = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=50)


@settings(deadline=None, max_examples=20)
@given(LABELS, LABELS)
def test_share_distances_match_definition(first, second) -> None:
    p, q = (class_shares(tf.constant(labels, tf.int64), CLASSES).numpy() for labels in (first, second))
    np.testing.assert_allclose(p, np.bincount(first, minlength=CLASSES) / len(first), rtol=1e-6)
    found = {name: float(value) for name, value in share_distances(tf.constant(p), tf.constant(q)).items()}
    kl = 0.0
    for one, two in zip(p.tolist(), q.tolist(), strict=True):
        if one:
            kl += one * math.log(one / two) if two else math.inf
    assert found["total_variation"] == pytest.approx(0.5 * np.abs(p - q).sum(), abs=1e-6)
    assert found["kl"] == pytest.approx(kl, abs=1e-5)
    assert found["missing"] == len(set(second) - set(first))


SEEDS = st.integers(0, 2**31 - 1)


def expected(first: np.ndarray, second: np.ndarray) -> float:
    """Return the distance by the eigenvalues of the product S1 S2, which needs no symmetric form."""
    means = first.mean(axis=0) - second.mean(axis=0)
    one, two = (np.atleast_2d(np.cov(each, rowvar=False)) for each in (first, second))
    roots = np.sqrt(np.maximum(np.linalg.eigvals(one @ two).real, 0.0))
    return float(means @ means + np.trace(one) + np.trace(two) - 2.0 * roots.sum())


def distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(frechet_distance(moments(tf.constant(first, tf.float32)), moments(tf.constant(second, tf.float32))))


def features(seed: int, count: int, width: int, scale: float = 1.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    mixed = generator.normal(size=(count, width)) @ generator.normal(size=(width, width))
    return (scale * (mixed + generator.normal(size=width))).astype(np.float32)


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(12, 40), st.integers(12, 40), st.integers(1, 8))
def test_frechet_distance_matches_definition(seed, first_count, second_count, width) -> None:
    first, second = features(seed, first_count, width), features(seed + 1, second_count, width)
    there = expected(first.astype(np.float64), second.astype(np.float64))
    assert distance(first, second) == pytest.approx(there, rel=1e-4, abs=1e-4)
    assert distance(second, first) == pytest.approx(there, rel=1e-4, abs=1e-4)


def test_frechet_distance_is_accurate_for_singular_covariances() -> None:
    """For covariances without full rank, a root of the product S1 S2 would leave errors of 1e-8 times their size."""
    generator = np.random.default_rng(0)
    first = np.maximum(1000.0 * generator.normal(size=(20, 64)), 0.0).astype(np.float32)
    first[:, 5:20] = 0.0
    assert distance(first, first) < 1e-6
    assert distance(first, first + np.float32(1.0)) == pytest.approx(64.0, rel=1e-3)


def test_large_means_do_not_swallow_small_spreads() -> None:
    values = features(1, 100, 3, scale=0.01)
    wide = 2.0 * (values - values.mean(axis=0)) + values.mean(axis=0)
    near, far = distance(values, wide), distance(values + 64.0, wide + 64.0)
    assert far == pytest.approx(near, rel=0.01)
    assert near > 0.0


MODES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]], np.float32)
STD = 0.25  # three of them are 0.75: distances on a grid of quarters are exact

# Points on a grid of quarters, away from the lines halfway between two modes, and some that are not finite.
PLACES = st.one_of(
    st.tuples(*[st.integers(-12, 28).map(lambda n: n / 4).filter(lambda x: x != 2.0)] * 2),
    st.sampled_from([(math.nan, 0.0), (0.0, math.inf), (-math.inf, math.nan)]),
)


def mode_metrics_expected(samples: list[tuple[float, float]]) -> dict[str, float]:
    good, near = [0] * len(MODES), [0] * len(MODES)
    for point in samples:
        if all(map(math.isfinite, point)):
            distances = [math.dist(point, mode) for mode in MODES]
            nearest = distances.index(min(distances))
            near[nearest] += 1
            good[nearest] += min(distances) <= 3 * STD
    shares = [count / sum(near) for count in near if count]
    return {
        "modes": sum(count >= 1 for count in good),
        "high_quality": sum(good) / len(samples),
        "kl_to_uniform": math.log(len(MODES)) + sum(share * math.log(share) for share in shares),
        "coverage": sum(min(count / len(samples), 1 / len(MODES)) for count in good),
    }


@settings(deadline=None, max_examples=30)
@given(st.lists(PLACES, min_size=1, max_size=40))
@example([(0.25, 0.0)] * 3 + [(4.0, -0.75), (3.25, 4.25)])  # one mode, however good; 3 deviations, and 3.16
def test_mode_metrics_match_definition(samples) -> None:
    found = mode_metrics(tf.constant(samples, tf.float32), tf.constant(MODES), STD)
    values = {name: float(value) for name, value in found.items()}
    assert values == pytest.approx(mode_metrics_expected(samples), abs=1e-5)


SHAPE = (8, 8, 1)
ASKED = {"input_shape": SHAPE, "classes": 10, "preparation": pixel_preparation(SHAPE, 16)}  # of the data


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("classifier") / "run"
    summary = run_small("baseline", "+hooks=ema", "hooks.ema.decay=0.9", run_dir=directory)
    return directory, summary


@pytest.mark.full
def test_classifier_predictions_match_best_evaluation_of_run(run) -> None:
    split = restore(str(run[0]), read_config(str(run[0]))).held_out["test"]
    examples = split.examples(range(split.split.size))
    classifier = load_classifier(str(run[0]), SimpleNamespace(**ASKED))
    features, shown = tf.function(classifier, autograph=False)(tf.constant(examples["inputs"]))
    assert features.shape == (len(examples["targets"]), 16)
    layers = classifier.layers
    last = max(place for place, layer in enumerate(layers) if isinstance(layer, keras.layers.Dense))
    logits = layers[last](features)  # features are the inputs of the last layer
    for layer in layers[last + 1 :]:
        logits = layer(logits, training=False)
    np.testing.assert_allclose(logits, shown, atol=1e-5)
    accuracy = float(np.mean(shown.numpy().argmax(axis=1) == examples["targets"]))
    assert accuracy == pytest.approx(run[1]["test"]["metric/accuracy"], abs=1e-6)  # averaged weights, best checkpoint


@pytest.mark.full
def test_unsuitable_classifier_or_unnamed_plugin_is_refused(run, tmp_path) -> None:
    config = yaml.safe_load((run[0] / "config.yaml").read_text())
    signal = {"_target_": "tests.support.signals.Signal", "steps": [1]}
    own = {"plugins": ["tests.support"], "hooks": {**config["hooks"], "signal": signal}}
    for name, change in (("own", own), ("task", {"task": {"_target_": "hookline.recipes.retrieval.retrieval"}})):
        shutil.copytree(run[0], tmp_path / name)
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump({**config, **change}))
    for directory, options, match in (
        (run[0], {"input_shape": (28, 28, 1)}, r"\[28, 28, 1\]"),
        (run[0], {"classes": 7}, "7 classes"),
        (run[0], {"preparation": Preparation(SHAPE, 1 / 255, peak=255)}, "from -1 to 1, but .* from 0 to 1. Set data."),
        (run[0], {"preparation": Preparation(SHAPE)}, "of no known range. Set data.scale .*unit"),
        (tmp_path / "task", {}, "no classifier"),
        (tmp_path / "own", {}, r"on its own. If you trust it, add plugins=\[tests.support\]"),
    ):
        assert_refused(match, load_classifier, str(directory), SimpleNamespace(**{**ASKED, **options}))
    load_classifier(str(tmp_path / "own"), SimpleNamespace(**ASKED), plugins=["tests.support"])
