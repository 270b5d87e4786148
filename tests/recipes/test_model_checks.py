"""Targets that a loss would misread are refused in one line; valid ones are accepted."""

import keras
import numpy as np
import pytest

from hookline.recipes.losses import ONE, Loss
from hookline.recipes.model_checks import check_targets
from tests.support.refusals import assert_refused

SPARSE, BINARY = "sparse_categorical_crossentropy", "binary_crossentropy"
LABELS = np.arange(6) % 3

MISREAD = {
    "probabilities": (BINARY, (None, 1), LABELS, "2 values lie outside 0..1, the first is 2 in row 2"),
    "signs": (BINARY, (None, 1), LABELS % 2 * 2 - 1.0, "the first is -1 in row 0"),
    "halves": (SPARSE, (), LABELS + 0.5, "not whole numbers"),
    "one-hot": (SPARSE, (None, 3), np.eye(3)[LABELS], "one-hot rows"),
    "tokens": (SPARSE, (None, 2, 3), LABELS.reshape(3, 2) + 1, "2 labels lie outside 0..2, the first is 3 in row 1"),
    "tokens of another length": (SPARSE, (None, 4, 3), LABELS.reshape(3, 2), r"\[n, 4\]"),
}


@pytest.mark.parametrize("case", MISREAD)
def test_targets_that_loss_would_misread_are_refused(case):
    loss, shape, targets, message = MISREAD[case]
    assert_refused(f"^y: .*{message}|^y has .*{message}", check_targets, targets, {ONE: Loss(loss)}, {ONE: shape}, "y")
    outputs = {"a": targets, "b": LABELS}
    assert_refused(r"^y\['a'\]", check_targets, outputs, {"a": Loss(loss), "b": Loss("mse")}, {"a": shape}, "y")


def test_valid_targets_are_accepted():
    for loss, shape, targets in (
        (BINARY, (None, 1), LABELS / 2),
        (SPARSE, (None, 3), LABELS[:, None].astype(np.float32)),
        (SPARSE, (None, None, 3), LABELS.reshape(3, 2)),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=-1), (None, 2, 3), LABELS.reshape(3, 2) - 1),
        ("mse", (None, 1), LABELS - 0.5),
    ):
        check_targets(targets, {ONE: Loss(loss)}, {ONE: shape}, "y")
