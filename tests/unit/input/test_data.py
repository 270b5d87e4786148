"""A data set knows what its classes are called, one name each."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.errors import UserError
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource


def make_data(targets=(0, 1, 2), **names):
    source = ArraySource({"inputs": np.zeros((3, 1)), "targets": np.array(targets)}, lambda batch: batch)
    splits = {name: Split(name, source, np.array([row])) for row, name in enumerate(("train", "validation", "test"))}
    return Data("tiny", **splits, input_shape=(1,), classes=3, **names)


def test_class_names_are_kept_and_may_be_left_out():
    assert make_data(class_names=("ant", "bee", "cat")).class_names == ("ant", "bee", "cat")
    assert make_data().class_names == ()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("ant", "bee"), "2 class names, 2 of them different, for 3 classes"),
        (("ant", "bee", "bee"), "3 class names, 2 of them different, for 3 classes"),
    ],
)
def test_names_that_do_not_fit_the_classes_are_refused(names, message):
    with pytest.raises(UserError, match=message):
        make_data(class_names=names)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ((0, 1, 3), "Data 'tiny', test: 1 labels lie outside 0..2, the first is 3 in row 2. Mend the labels"),
        ((0, -1, 2), "Data 'tiny', validation: 1 labels lie outside 0..2, the first is -1 in row 1"),
        ((0.0, 1.0, 2.0), r"Received targets: float64 of shape \[3\]; expected integers \[3\]"),
        (np.eye(3, dtype=np.int64), r"Received targets: int64 of shape \[3, 3\]"),
    ],
)
def test_a_label_out_of_range_is_found_in_every_split_of_every_source(targets, message):
    with pytest.raises(UserError, match=message):
        make_data(targets)


def test_a_source_with_labels_of_another_number_is_refused():
    class Short(ArraySource):
        @property
        def labels(self):
            return super().labels[:-1]

    source = Short({"inputs": np.zeros((3, 1)), "targets": np.arange(3)}, lambda batch: batch)
    splits = {name: Split(name, source, np.array([row])) for row, name in enumerate(("train", "validation", "test"))}
    with pytest.raises(UserError, match=r"Data 'tiny', train: labels of shape \[2\]; expected \[3\], one for each row"):
        Data("tiny", **splits, input_shape=(1,), classes=3)
