"""What a set has not is held out of its training examples, in the way that was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.data.hold_out import count_classes, data_of_parts, hold_out
from trainer.errors import UserError
from trainer.inference.preparation import Preparation
from trainer.input.source import ArraySource
from trainer.input.split import split_indices

LABELS = np.arange(60) % 3
AMOUNTS = {"validation": 0.1, "test": 12}
GROUPS = np.arange(60) // 4


def source(labels=LABELS):
    return ArraySource({"inputs": np.zeros([len(labels), 1], np.float32), "targets": labels}, lambda batch: batch)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("stratified", lambda: split_indices(60, AMOUNTS, 5, LABELS)),
        ("random", lambda: split_indices(60, AMOUNTS, 5)),
        ("group", lambda: split_indices(60, AMOUNTS, 5, LABELS, groups=GROUPS)),
    ],
)
def test_every_way_is_that_of_split_indices(split, expected):
    found = hold_out(LABELS, AMOUNTS, split=split, seed=5, groups=lambda: GROUPS)
    assert list(found) == ["train", "validation", "test"]
    for name, rows in expected().items():
        np.testing.assert_array_equal(found[name], rows)


def test_keys_alone_decide_for_hash():
    keys = np.array([f"photo {row}" for row in range(60)])
    shares = {"validation": 0.2, "test": 0.2}
    found = hold_out(LABELS, shares, split="hash", seed=5, keys=lambda: keys)
    for name, rows in split_indices(60, shares, 5, keys=keys).items():
        np.testing.assert_array_equal(found[name], rows)


def test_nothing_held_out_asks_for_nothing():
    found = hold_out(LABELS, {}, split="group", seed=0)
    np.testing.assert_array_equal(found["train"], np.arange(60))
    assert found.keys() == {"train"}


def test_what_a_way_needs_must_be_there():
    for split, name in (("group", "groups"), ("hash", "keys")):
        with pytest.raises(UserError, match=f"data.split={split} needs {name}; give {name}."):
            hold_out(LABELS, AMOUNTS, split=split, seed=0, mend="give {name}.")
    with pytest.raises(UserError, match="Unknown data.split 'groups'"):
        hold_out(LABELS, AMOUNTS, split="groups", seed=0)


def test_parts_become_splits_of_their_own_sources():
    sources = {"train": source(), "test": source(LABELS[:9])}
    rows = hold_out(LABELS, {"validation": 6}, split="random", seed=0)
    data = data_of_parts("own", sources, rows, preparation=Preparation((1,)), classes=3, class_names=["a", "b", "c"])
    assert [data.train.size, data.validation.size, data.test.size] == [54, 6, 9]
    assert data.train.source is data.validation.source is sources["train"]
    assert data.test.source is sources["test"]
    assert (data.name, data.class_names) == ("own", ("a", "b", "c"))


@pytest.mark.parametrize(("names", "first"), [((), "0"), (("ant", "bee", "cat", "dog"), "'ant'")])
def test_a_class_without_an_example_to_train_on_is_a_warning(names, first):
    sources = {part: source(LABELS + 1) for part in ("train", "validation", "test")}
    with pytest.warns(UserWarning, match=f"1 of 4 classes have no training example, the first is {first}: no network"):
        data_of_parts(
            "own", sources, {"train": np.arange(60)}, preparation=Preparation((1,)), classes=4, class_names=names
        )


def test_classes_are_counted_over_all_parts_and_every_label_is_checked():
    parts = {"train": np.array([0, 1, 1]), "test": np.array([2], np.uint8)}
    assert count_classes(parts, None) == 3
    assert count_classes(parts, 7) == 7
    for classes, wrong, message in (
        (2, {}, "test: 1 labels lie outside 0..1, the first is 2 in row 0"),
        (1, {}, "data.classes=1; expected 2 or more"),
        (None, {"train": np.array([0, -1])}, "train: 1 labels lie outside"),
        (None, {"train": np.array([0.0])}, "train: labels of dtype float64"),
        (None, {"test": np.array([400])}, "test: a label is 400, and there are 4 examples"),
        (None, {"train": np.array([0]), "test": np.array([0])}, "all labels are 0"),
    ):
        with pytest.raises(UserError, match=message):
            count_classes({**parts, **wrong}, classes)
