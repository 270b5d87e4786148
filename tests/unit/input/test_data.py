"""A data set knows what its classes are called, one name each."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.errors import UserError
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource


def make_data(**names):
    source = ArraySource({"inputs": np.zeros((3, 1)), "targets": np.arange(3)}, lambda batch: batch)
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
