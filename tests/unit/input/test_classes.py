"""Settings by class: weights and shares, balanced or given, by label or by name."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.input.sampling import class_shares, class_weights

LABELS = np.repeat([0, 1, 3], [6, 3, 1])
NAMES = ("cat", "dog", "eel", "fox")


def test_balanced_weights_give_each_class_the_same_sum_and_a_mean_of_one():
    weights = class_weights("balanced", LABELS, 4)
    assert weights.dtype == np.float32
    sums = np.bincount(LABELS, weights[LABELS], minlength=4)
    np.testing.assert_allclose(sums, [10 / 3, 10 / 3, 0, 10 / 3], rtol=1e-6)
    assert weights[LABELS].mean() == pytest.approx(1.0)


@pytest.mark.parametrize("setting", [{1: 2.5, 3: 0}, {"1": 2.5, "3": 0.0}, {"dog": 2.5, "fox": 0}, {"dog": 2.5, 3: 0}])
def test_weights_are_given_by_label_or_name_and_the_others_are_one(setting):
    assert class_weights(setting, LABELS, 4, NAMES).tolist() == [1.0, 2.5, 1.0, 0.0]


def test_classes_without_a_share_divide_the_rest_by_their_sizes():
    np.testing.assert_allclose(class_shares("balanced", LABELS, 4), [1 / 3, 1 / 3, 0, 1 / 3])
    np.testing.assert_allclose(class_shares({3: 0.4}, LABELS, 4), [0.4, 0.2, 0.0, 0.4])
    np.testing.assert_allclose(class_shares({"cat": 0.5, 1: 0.3, "fox": 0.2}, LABELS, 4, NAMES), [0.5, 0.3, 0.0, 0.2])


def test_what_cannot_be_is_refused():
    for function, setting, names, match in (
        (class_weights, {4: 1.0}, (), "class 4"),
        (class_weights, {"dgo": 1.0}, NAMES, "'dog'"),
        (class_weights, {"dog": 1.0, 1: 2.0}, NAMES, "class 1 twice"),
        (class_weights, {0: 0, 1: 0, 3: 0}, (), "0 for every class"),
        (class_shares, {2: 0.5}, (), "class 2"),
        (class_shares, {0: 0.6, 1: 0.4}, (), r"add up to 1\."),
        (class_shares, {0: 0.6, 1: 0.1, 3: 0.1}, (), r"add up to 0\.8"),
        (class_shares, {0: 0.6, 1: 0.4, 3: 0.1}, (), r"add up to 1\.1"),
    ):
        with pytest.raises(UserError, match=match):
            function(setting, LABELS, 4, names)
