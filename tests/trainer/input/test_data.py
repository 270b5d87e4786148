"""A data set has splits that share nothing, one name for each class, and labels within its classes."""

import itertools

import numpy as np

from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource
from tests.support.refusals import assert_refused


def source_of(targets):
    targets = np.array(targets)
    return ArraySource({"inputs": np.zeros((len(targets), 1)), "targets": targets}, lambda batch: batch)


def make_data(targets=(0, 1, 2), *, rows=((0,), (1,), (2,)), **options):
    source = source_of(targets)
    names = ("train", "validation", "test")
    splits = {name: Split(name, source, np.array(each, np.int64)) for name, each in zip(names, rows, strict=True)}
    return Data("tiny", **splits, input_shape=(1,), classes=3, **options)


def test_rows_of_a_split_that_are_none_are_refused():
    for indices, message in (
        (np.array([], np.int64), "empty"),
        (np.array([0, 1], np.int32), "int32"),
        (np.array([0, 20], np.int64), r"0\.\.20; expected rows within 0\.\.19"),
        (np.array([4, 4, 5, 4], np.int64), "repeats 2 rows"),
    ):
        assert_refused(message, Split, "train", source_of([0] * 20), indices)


def test_splits_that_share_examples_are_refused():
    for first, second in itertools.combinations(range(3), 2):
        rows = [[2 * place, 2 * place + 1] for place in range(3)]
        rows[second].append(rows[first][0])
        names = [("train", "validation", "test")[place] for place in (first, second)]
        assert_refused(f"'{names[0]}' and '{names[1]}' of data 'tiny' share 1 examples", make_data, [0] * 6, rows=rows)
    one, other = source_of([0] * 6), source_of([0] * 6)  # the same rows of two sources are not overlap
    splits = [Split(name, one, np.array([row])) for row, name in enumerate(("train", "validation"))]
    assert Data("tiny", *splits, Split("test", other, np.array([0])), input_shape=(1,), classes=2).test.size == 1


def test_names_and_labels_that_do_not_fit_the_classes_are_refused():
    assert make_data(class_names=("ant", "bee", "cat")).class_names == ("ant", "bee", "cat")
    for options, message in (
        ({"class_names": ("ant", "bee", "bee")}, "2 different class names for 3"),
        ({"targets": (0, 1, 3)}, "'tiny', test: 1 labels lie outside 0..2, the first is 3 in row 2"),
        ({"targets": (0, -1, 2)}, "'tiny', validation: 1 labels lie outside 0..2, the first is -1 in row 1"),
        ({"targets": (0.0, 1.0, 2.0)}, "float64"),
    ):
        assert_refused(message, make_data, **options)
