"""What a set has not is held out of its training examples, in the way that was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.recipes.data.hold_out import hold_out
from hookline.recipes.data.targets import count_classes
from hookline.trainer.errors import UserError
from hookline.trainer.input.split import split_indices
from tests.support.refusals import assert_refused

LABELS = np.arange(60) % 3
AMOUNTS = {"validation": 0.1, "test": 0.2}
GROUPS = np.arange(60) // 4
KEYS = np.array([f"photo {row}" for row in range(60)])


def test_every_way_is_that_of_split_indices():
    for split, columns in (
        ("stratified", {"labels": LABELS}),
        ("random", {}),
        ("group", {"labels": LABELS, "groups": GROUPS}),
        ("hash", {"keys": KEYS}),
    ):
        found = hold_out(len(LABELS), LABELS, AMOUNTS, split=split, seed=5, groups=lambda: GROUPS, keys=lambda: KEYS)
        assert list(found) == ["train", "validation", "test"]
        for name, rows in split_indices(60, AMOUNTS, 5, **columns).items():
            np.testing.assert_array_equal(found[name], rows, split)
    found = hold_out(len(LABELS), LABELS, {}, split="group", seed=0)
    np.testing.assert_array_equal(found["train"], np.arange(60))
    assert found.keys() == {"train"}
    for split, name in (("group", "groups"), ("hash", "keys")):
        with pytest.raises(UserError, match=f"data.split={split} needs {name}; give {name}."):
            hold_out(len(LABELS), LABELS, AMOUNTS, split=split, seed=0, remedy="give {name}.")


def test_classes_are_counted_over_all_parts_and_every_label_is_checked():
    parts = {"train": np.array([0, 1, 1]), "test": np.array([2], np.uint8)}
    assert count_classes(parts, None) == 3
    assert count_classes(parts, 7) == 7
    for classes, wrong, message in (
        (2, {}, "test: 1 labels lie outside 0..1, the first is 2 in row 0"),
        (1, {}, "data.classes=1"),
        (None, {"train": np.array([0, -1])}, "train: 1 labels lie outside"),
        (None, {"train": np.array([0.0])}, "train: labels of dtype float64"),
        (None, {"test": np.array([400])}, "test: a label is 400"),
        (None, {"train": np.array([0]), "test": np.array([0])}, "all labels are 0"),
    ):
        assert_refused(message, count_classes, {**parts, **wrong}, classes)
