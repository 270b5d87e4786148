"""How good samples are: coverage, what a classifier sees, averages over generators, pictures."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.adversarial.sample_quality import (
    ImageQuality,
    MixtureQuality,
    average_metrics,
    coverage,
    draw,
    quality_for,
)
from hookline.recipes.data.digits import digits
from hookline.recipes.data.points import ring, toy_points
from hookline.trainer.errors import UserError

CENTERS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)
DEVIATION = 0.05


def points_at(*counts, away=0.0):
    """So many points at each center, and the last number of them far from all."""
    *at, nowhere = counts
    near = np.repeat(CENTERS, at, axis=0) + np.float32(away)
    return tf.constant(np.concatenate([near, np.full((nowhere, 2), 7.0, np.float32)]))


def of(points):
    return float(coverage(points, CENTERS, DEVIATION))


def test_coverage_is_one_only_for_good_samples_of_all_modes():
    assert of(points_at(5, 5, 5, 5, 0)) == pytest.approx(1.0)
    assert of(points_at(20, 0, 0, 0, 0)) == pytest.approx(0.25)  # one mode, however good
    assert of(points_at(5, 5, 5, 0, 0)) == pytest.approx(0.75)
    assert of(points_at(3, 3, 3, 3, 12)) == pytest.approx(0.5)
    assert of(points_at(0, 0, 0, 0, 9)) == 0.0
    assert of(points_at(5, 5, 5, 5, 0, away=2.0 * DEVIATION)) == pytest.approx(1.0)  # 2.83 deviations
    assert of(points_at(5, 5, 5, 5, 0, away=2.2 * DEVIATION)) == 0.0  # 3.11 deviations


def test_points_are_judged_by_their_mixture():
    data = ring(modes=4, examples=400)
    quality = quality_for(data, None)
    assert isinstance(quality, MixtureQuality)
    metrics = quality.metrics(tf.constant(np.repeat(data.centers, 30, axis=0)), {})
    assert {name: round(float(value), 5) for name, value in metrics.items()} == {
        "modes": 4.0,
        "high_quality": 1.0,
        "kl_to_uniform": 0.0,
        "coverage": 1.0,
    }
    real = {name: value.numpy() for name, value in quality.collect({"inputs": tf.constant(data.centers)}).items()}
    picture = quality.picture(np.repeat(data.centers, 3, axis=0), real, "samples")
    assert picture.shape[-1] == 3


class Brightness:
    """Stand for a classifier of two classes: dark and bright images; its features are mean and deviation."""

    def __call__(self, images):
        mean = tf.reduce_mean(images, axis=(1, 2, 3))
        features = tf.stack([mean, tf.math.reduce_std(images, axis=(1, 2, 3))], axis=1)
        return features, tf.cast(mean > 0.0, tf.int32)


def test_images_are_judged_by_a_classifiers_features_and_classes():
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


def test_several_generators_are_averaged_and_the_best_is_named():
    def metrics(samples):
        return {"modes": samples[0], "coverage": samples[1], "high_quality": samples[2]}

    found = average_metrics(metrics, tf.constant([[4.0, 0.5, 0.2], [8.0, 0.1, 0.4]]))
    assert {name: round(float(value), 5) for name, value in found.items()} == {
        "modes": 6.0,
        "coverage": 0.3,
        "high_quality": 0.3,
        "best_modes": 8.0,
        "best_coverage": 0.5,
    }
    assert average_metrics(metrics, tf.constant([[4.0, 0.5, 0.2]])).keys() == {"modes", "coverage", "high_quality"}


def test_without_a_judge_images_are_only_shown(tmp_path):
    assert quality_for(toy_points(), None) is None
    with pytest.raises(UserError, match="task.classifier"):
        quality_for(toy_points(), "runs/a")
    with pytest.raises(UserError, match="config.yaml"):
        quality_for(digits(), str(tmp_path / "nothing"))
    quality, images = quality_for(digits(), None), np.zeros((3, 64, 8, 8, 1), np.float32)
    assert isinstance(quality, ImageQuality)
    assert quality.collect({"inputs": images[0]}) == quality.metrics(tf.constant(images[0]), {}) == {}
    one, three = draw(quality, images[:1], {}), draw(quality, images, {})
    assert three.shape[0] > 3 * one.shape[0]  # every generator has a picture of its own
