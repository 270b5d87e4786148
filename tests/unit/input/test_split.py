"""Splits are disjoint, complete, stratified and reproducible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import UserError
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.input.split import split_indices

FRACTIONS = {"validation": 0.1, "test": 0.2}


def make_source(size=20):
    return ArraySource({"inputs": np.zeros((size, 1), np.uint8), "targets": np.zeros(size, np.int64)}, dict)


def make_split(name, source, indices):
    return Split(name, source, np.array(indices, np.int64))


@settings(deadline=None)
@given(
    size=st.integers(20, 500),
    validation=st.floats(0.05, 0.45),
    test=st.floats(0.05, 0.45),
    seed=st.integers(0, 2**32),
    classes=st.integers(0, 12),
)
def test_parts_are_disjoint_and_complete(size, validation, test, seed, classes):
    labels = np.random.default_rng(seed).integers(0, classes, size) if classes else None
    parts = split_indices(size, {"validation": validation, "test": test}, seed, labels)
    assert list(parts) == ["train", "validation", "test"]
    np.testing.assert_array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(size))
    assert parts["validation"].size == round(validation * size)
    assert parts["test"].size == round(test * size)
    assert all(part.dtype == np.int64 for part in parts.values())


@settings(deadline=None)
@given(size=st.integers(100, 1000), seed=st.integers(0, 2**32), skew=st.floats(0.1, 5))
def test_parts_hold_each_class_in_proportion(size, seed, skew):
    share = np.arange(1, 8) ** skew
    labels = np.random.default_rng(seed).choice(7, size, p=share / share.sum())
    parts = split_indices(size, FRACTIONS, seed, labels)
    for name, fraction in FRACTIONS.items():
        counts = np.bincount(labels[parts[name]], minlength=7)
        assert np.all(np.abs(counts - fraction * np.bincount(labels, minlength=7)) <= 2)


def test_unstratified_parts_are_drawn_from_the_whole_set():
    parts = split_indices(10_000, FRACTIONS, 0)
    for part in parts.values():
        assert abs(part.mean() - 5000) < 5 * 2887 / np.sqrt(part.size)


def test_stratified_parts_are_drawn_from_the_whole_of_each_class():
    labels = np.repeat(np.arange(10), 1000)
    within = split_indices(10_000, FRACTIONS, 0, labels)["validation"] % 1000
    assert abs(within.mean() - 500) < 5 * 289 / np.sqrt(within.size)


def test_a_seed_gives_one_split_and_another_seed_another():
    labels = np.arange(200) % 4
    for given_labels in (None, labels):
        first, again, other = (split_indices(200, FRACTIONS, seed, given_labels) for seed in (3, 3, 4))
        for name in first:
            np.testing.assert_array_equal(first[name], again[name])
        assert not np.array_equal(first["test"], other["test"])


def test_a_split_never_changes_between_versions():
    parts = split_indices(20, {"validation": 0.15, "test": 0.2}, seed=1)
    assert parts["validation"].tolist() == [2, 9, 16]
    assert parts["test"].tolist() == [4, 14, 18, 19]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan"), "0.1", None, True])
def test_a_fraction_out_of_range_is_refused_by_name(fraction):
    with pytest.raises(UserError, match="validation fraction"):
        split_indices(100, {"validation": fraction}, 0)


@pytest.mark.parametrize(
    ("size", "fractions", "seed", "labels", "message"),
    [
        (100, {"validation": 0.5, "test": 0.5}, 0, None, "sum below 1"),
        (100, FRACTIONS, -1, None, "seed -1"),
        (100, FRACTIONS, 0.5, None, "seed 0.5"),
        (100, FRACTIONS, 0, np.zeros(99), r"labels of shape \[99\]"),
        (3, FRACTIONS, 0, None, "'validation' of 3 examples is empty"),
        (2, {"validation": 0.4, "test": 0.59}, 0, None, "'train' of 2 examples is empty"),
    ],
)
def test_settings_that_cannot_be_split_are_refused(size, fractions, seed, labels, message):
    with pytest.raises(UserError, match=message):
        split_indices(size, fractions, seed, labels)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (np.array([], np.int64), "empty"),
        (np.array([0, 1], np.int32), "int32"),
        (np.array([[0, 1]], np.int64), r"shape \[1, 2\]"),
        (np.array([0, 20], np.int64), r"0\.\.20; expected rows within 0\.\.19"),
        (np.array([-1, 3], np.int64), r"-1\.\.3"),
        (np.array([4, 4, 5, 4], np.int64), "repeats 2 rows"),
    ],
)
def test_bad_indices_are_refused(indices, message):
    with pytest.raises(UserError, match=message):
        Split("train", make_source(), indices)


@pytest.mark.parametrize(
    ("train", "validation", "test", "message"),
    [
        ([0, 1, 2, 3], [3, 4, 2], [5], "'train' and 'validation' of data 'tiny' share 2 examples"),
        ([0, 1], [2], [1, 3], "'train' and 'test' of data 'tiny' share 1 examples"),
        ([0, 1], [2], [2, 3], "'validation' and 'test' of data 'tiny' share 1 examples"),
    ],
)
def test_splits_that_share_examples_are_refused(train, validation, test, message):
    source = make_source()
    splits = [make_split(*pair) for pair in (("train", source, train), ("validation", source, validation))]
    with pytest.raises(UserError, match=message):
        Data("tiny", *splits, make_split("test", source, test), input_shape=(1,), classes=2)


def test_the_same_rows_of_two_sources_are_no_overlap():
    first, second = make_source(), make_source()
    data = Data(
        "tiny",
        make_split("train", first, [0, 1]),
        make_split("validation", first, [2]),
        make_split("test", second, [0, 1]),
        input_shape=(1,),
        classes=2,
    )
    assert (data.train.size, data.validation.size, data.test.size) == (2, 1, 2)
