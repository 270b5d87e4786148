"""Targets that are labels or not, and rows held out in the requested way."""

import numpy as np
import pytest

from hookline.recipes.data.arrays import arrays
from hookline.recipes.data.custom import custom
from hookline.recipes.data.diabetes import diabetes
from hookline.recipes.data.digits import sklearn_table
from hookline.recipes.data.splits import count_classes, hold_out, read_targets
from hookline.trainer.input.split import split_indices
from tests.support.batches import whole
from tests.support.refusals import assert_refused

LABELS = np.arange(60) % 3
AMOUNTS = {"validation": 0.1, "test": 0.2}
GROUPS = np.arange(60) // 4
KEYS = np.array([f"photo {row}" for row in range(60)])


def test_hold_out_matches_split_indices_for_every_split():
    for split, columns in (
        ("stratified", {"labels": LABELS}),
        ("random", {}),
        ("group", {"labels": LABELS, "groups": GROUPS}),
        ("hash", {"keys": KEYS}),
    ):
        found = hold_out(len(LABELS), LABELS, {**AMOUNTS, "split": split, "seed": 5}, (), groups=GROUPS, keys=KEYS)
        assert list(found) == ["train", "validation", "test"]
        np.testing.assert_equal(found, split_indices(60, AMOUNTS, 5, **columns), split)
    columns = {"groups": None, "keys": None}
    found = hold_out(len(LABELS), LABELS, {"split": "group", "seed": 0}, AMOUNTS, **columns)
    np.testing.assert_array_equal(found["train"], np.arange(60))
    assert found.keys() == {"train"}
    for split, name in (("group", "groups"), ("hash", "keys")):
        message = f"data.split={split} needs {name}.*data.{name}.*attribute {name}"
        assert_refused(message, hold_out, len(LABELS), LABELS, {**AMOUNTS, "split": split, "seed": 0}, (), **columns)


def test_classes_are_counted_over_all_parts_and_every_label_is_checked():
    parts = {"train": np.array([0, 1, 1]), "test": np.array([2], np.uint8)}
    assert count_classes(parts, None) == 3
    assert count_classes(parts, 7) == 7
    for classes, wrong, message in (
        (2, {}, "test: 1 labels lie outside 0..1, the first is 2 in row 0"),
        (1, {}, "data.classes=1"),
        (None, {"train": np.array([0, -1])}, "train: a label is -1; expected classes from 0 on"),
        (None, {"train": np.array([0.0])}, "train: labels of dtype float64"),
        (None, {"test": np.array([400])}, "test: a label is 400"),
        (None, {"train": np.array([0]), "test": np.array([0])}, "all labels are 0"),
    ):
        assert_refused(message, count_classes, {**parts, **wrong}, classes)


VECTORS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("targets", "classes", "dtype", "count"),
    [
        (np.array([[2], [0], [1]], np.uint8), None, np.int64, 3),
        (np.array([7, 0, 1]), 0, np.int64, 0),
        (np.array([0.5, 1.0, 2.0]), None, np.float32, 0),
        (np.array([[0, 1], [1, 1], [0, 0]], bool), None, np.int64, 0),
        (np.zeros([3, 4, 4, 1], np.float16), None, np.float32, 0),
    ],
)
def test_only_one_integer_per_example_is_a_label(targets, classes, dtype, count) -> None:
    found, number = read_targets({"here": targets}, classes)
    assert (found["here"].dtype, number) == (dtype, count)
    np.testing.assert_array_equal(found["here"], targets[:, 0] if count else targets)


def test_targets_that_no_loss_takes_are_refused() -> None:
    for targets, classes, part in (
        ({"a": np.array(["cat", "dog"])}, None, "expected numbers"),
        ({"a": np.array([0.5, np.nan])}, None, "NaN"),
        ({"a": np.array([0.5, 1.5])}, 2, "expected integers"),
        ({"a": np.zeros([3, 2]), "b": np.zeros([3, 4])}, None, "as in a"),
    ):
        assert_refused(part, read_targets, targets, classes)


class Rows:
    """Give vectors with two numbers to predict."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        return VECTORS[row], VECTORS[row, :2] * 2


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_numeric_targets_stay_with_their_inputs(tmp_path, cache) -> None:
    np.save(tmp_path / "x_train.npy", VECTORS)
    np.save(tmp_path / "y_train.npy", VECTORS[:, :2] * 2)
    for data in (arrays(path=str(tmp_path), cache=cache), custom(source=Rows(), cache=cache)):
        assert (data.classes, data.train.size, data.validation.size, data.test.size) == (0, 28, 4, 8)
        for split in data.splits:
            batch = whole(split)
            np.testing.assert_array_equal(batch["targets"], batch["inputs"][:, :2] * 2)
    assert_refused(r"data\.split=random", arrays, path=str(tmp_path), split="stratified")


def test_diabetes_data_is_standardized_by_training_rows() -> None:
    inputs, targets = sklearn_table("diabetes_data_raw"), sklearn_table("diabetes_target")
    assert (inputs.shape, targets.min(), targets.max()) == ((442, 10), 25, 346)
    found = whole(diabetes().train)
    for each in (found["inputs"], found["targets"]):
        np.testing.assert_allclose(each.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(each.std(axis=0), 1, atol=1e-5)
    assert np.corrcoef(found["targets"], found["inputs"][:, 2])[0, 1] > 0.5  # the body mass index is the best predictor
