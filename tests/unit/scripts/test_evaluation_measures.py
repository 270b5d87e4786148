"""Measures of a classifier: calibration, confusion, measures of each class."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from scripts.evaluation.calibration import brier_score, negative_log_likelihood, reliability
from scripts.evaluation.charts import write_confusion
from scripts.evaluation.measures import measure
from scripts.evaluation.report import write_evaluation
from scripts.prediction.ranking import softmax
from trainer.errors import UserError

NAMES = ("cat", "dog", "bird")
LABELS = np.array([0, 0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 0, 1, 1, 2, 2])


def logits_of(predicted: np.ndarray, classes: int = 3, *, sharpness: float = 3.0) -> np.ndarray:
    return sharpness * np.eye(classes, dtype=np.float32)[predicted]


def test_measures_of_each_class_are_those_by_hand():
    cat, dog, bird = measure(logits_of(PREDICTED), LABELS, NAMES, bins=10).classes
    assert (cat.precision, cat.recall, cat.support, cat.predicted) == (1.0, 0.75, 4, 3)
    assert (dog.precision, dog.recall, dog.support, dog.predicted) == (0.5, 0.5, 2, 2)
    assert (bird.precision, bird.recall, bird.support, bird.predicted) == (0.5, 1.0, 1, 2)
    assert bird.f1 == pytest.approx(2 / 3)


def test_rows_of_the_confusion_matrix_are_the_true_classes():
    found = measure(logits_of(PREDICTED), LABELS, NAMES, bins=10)
    assert found.confusion.tolist() == [[3, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert found.overall["accuracy"] == pytest.approx(5 / 7)
    assert found.overall["macro_recall"] == pytest.approx((0.75 + 0.5 + 1.0) / 3)
    assert found.overall["macro_precision"] == pytest.approx((1.0 + 0.5 + 0.5) / 3)
    assert "top_5_accuracy" not in found.overall


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 60), st.integers(0, 1000))
def test_measures_agree_with_counting(classes, examples, seed):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(examples, classes)).astype(np.float32)
    labels = generator.integers(0, classes, examples)
    found = measure(logits, labels, [str(name) for name in range(classes)], bins=7)
    predicted = logits.argmax(axis=1)
    for true in range(classes):
        for taken in range(classes):
            assert found.confusion[true, taken] == np.sum((labels == true) & (predicted == taken))
    assert found.overall["accuracy"] == pytest.approx(np.mean(predicted == labels))
    assert np.trace(found.confusion) == round(found.overall["accuracy"] * examples)
    assert found.reliability.counts.sum() == examples
    weighed = np.sum(found.reliability.counts * found.reliability.accuracy) / examples
    assert weighed == pytest.approx(found.overall["accuracy"])
    assert 0 <= found.overall["expected_calibration_error"] <= found.overall["largest_calibration_error"] <= 1
    if classes >= 10:
        rank = np.sum(logits > logits[np.arange(examples), labels][:, None], axis=1)
        assert found.overall["top_5_accuracy"] == pytest.approx(np.mean(rank < 5))


def test_of_equal_classes_the_lower_label_comes_first_in_every_measure():
    names = [str(name) for name in range(10)]
    found = measure(np.zeros((10, 10), np.float32), np.arange(10), names, bins=5).overall
    assert (found["accuracy"], found["top_5_accuracy"]) == (0.1, 0.5)
    found = measure(np.zeros((10, 10), np.float32), np.zeros(10, int), names, bins=5).overall
    assert (found["accuracy"], found["top_5_accuracy"]) == (1.0, 1.0)


def test_a_bin_holds_its_upper_edge_and_not_its_lower_one():
    bins = reliability(np.array([0.2, 0.2000001, 0.4, 1.0, 1e-9]), np.array([True, False, True, True, False]), 5)
    assert bins.counts.tolist() == [2, 2, 0, 0, 1]
    assert bins.accuracy.tolist() == [0.5, 0.5, 0.0, 0.0, 1.0]


def test_the_calibration_error_is_weighed_by_the_examples_of_a_bin():
    confidence = np.array([0.95, 0.95, 0.95, 0.65])
    bins = reliability(confidence, np.array([True, True, False, False]), 10)
    assert bins.expected_error == pytest.approx(3 / 4 * (0.95 - 2 / 3) + 1 / 4 * 0.65)
    assert bins.largest_error == pytest.approx(0.65)


@given(st.integers(1, 20), st.integers(1, 200), st.integers(0, 100))
def test_the_calibration_error_agrees_with_a_loop(bins, examples, seed):
    generator = np.random.default_rng(seed)
    confidence, correct = 1 - generator.random(examples), generator.random(examples) < 0.5
    expected = 0.0
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert reliability(confidence, correct, bins).expected_error == pytest.approx(expected, abs=1e-9)


def test_scores_of_probabilities_are_those_by_hand():
    logits, labels = np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), np.array([1, 1])
    assert softmax(logits) == pytest.approx(np.exp(logits))
    assert negative_log_likelihood(logits, labels) == pytest.approx(-(np.log(0.25) + np.log(0.8)) / 2)
    assert brier_score(np.exp(logits), labels) == pytest.approx((0.25 + 0.5625 + 0.0625 + 0.01 + 0.04 + 0.01) / 2)


def test_logits_of_any_size_stay_finite():
    logits, labels = np.array([[1e4, -1e4], [-1e4, 1e4]], np.float32), np.array([0, 0])
    assert negative_log_likelihood(logits, labels) == pytest.approx(1e4)
    assert softmax(logits).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_a_class_without_examples_is_in_no_average():
    found = measure(logits_of(np.array([0, 1])), np.array([0, 1]), NAMES, bins=5)
    assert found.classes[2].support == 0
    assert found.overall["macro_f1"] == 1.0


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("L")).astype(int)


def write(directory: Path, classes: int = 3) -> list[str]:
    names = [f"class_{number}" for number in range(classes)]
    found = measure(logits_of(PREDICTED % classes, classes), LABELS % classes, names, bins=10)
    return write_evaluation(directory, {"title": "net on data, test split", "metrics": {}}, found, names)


def test_the_folder_holds_tables_pictures_and_json(tmp_path):
    files = write(tmp_path / "deep" / "test")
    assert files == ["calibration.png", "classes.csv", "confusion.csv", "confusion.png", "evaluation.json"]
    folder = tmp_path / "deep" / "test"
    content = json.loads((folder / "evaluation.json").read_text())
    assert content["confusion"] == [[3, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert content["classes"][1]["class"] == "class_1"
    rows = list(csv.reader((folder / "confusion.csv").read_text().splitlines()))
    assert rows[0] == ["true \\ predicted", "class_0", "class_1", "class_2"]
    assert rows[1] == ["class_0", "3", "1", "0"]
    header, first, *_ = csv.reader((folder / "classes.csv").read_text().splitlines())
    assert dict(zip(header, first, strict=True)) == {
        "class": "class_0",
        "precision": "1.0",
        "recall": "0.75",
        "f1": str(6 / 7),
        "support": "4",
        "predicted": "3",
    }
    for name in ("confusion.png", "calibration.png"):
        assert min(pixels(folder / name).shape) > 300


def test_an_evaluation_that_exists_is_replaced_as_a_whole(tmp_path):
    write(tmp_path / "test")
    (tmp_path / "test" / "old.txt").write_text("x")
    assert "old.txt" not in write(tmp_path / "test")
    assert [each.name for each in tmp_path.iterdir()] == ["test"]


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    write(tmp_path / "test")
    before = (tmp_path / "test" / "evaluation.json").read_bytes()

    def full(*given, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scripts.evaluation.report.write_reliability", full)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        write(tmp_path / "test")
    assert (tmp_path / "test" / "evaluation.json").read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["test"]


def test_pictures_of_many_classes_stay_of_a_size_that_can_be_looked_at(tmp_path):
    path = tmp_path / "confusion.png"
    write_confusion(np.eye(100, dtype=int), [str(number) for number in range(100)], "title", path)
    assert max(pixels(path).shape) < 2000


def test_the_picture_darkens_the_share_of_the_row(tmp_path):
    path = tmp_path / "confusion.png"
    write_confusion(np.array([[1, 0], [9, 1]]), ["a", "b"], "title", path)
    picture = pixels(path)
    inner = picture[: picture.shape[0] - 60, 60 : picture.shape[1] * 3 // 4]
    left, right = np.array_split(inner[60 : inner.shape[0] // 2], 2, axis=1)
    assert np.median(left) < np.median(right) - 100
