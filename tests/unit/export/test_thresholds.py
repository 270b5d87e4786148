"""Integer thresholds: for every integer that can occur, the sign of the formula that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.deploy import fold_signs as thresholds
from hookline.deploy.fold_signs import Thresholds, find_thresholds


def batch_norm(gamma, beta, mean, variance, *, epsilon: float = 1e-3):
    """Return the signs of batch norm by given statistics, in float32 as Keras computes it."""
    gamma, beta, mean, variance = (np.asarray(each, np.float32) for each in (gamma, beta, mean, variance))

    def signs(integers: np.ndarray) -> np.ndarray:
        scale = gamma / np.sqrt(variance + np.float32(epsilon))
        return integers.astype(np.float32)[:, None] * scale + (beta - mean * scale) >= 0

    return signs


def check(signs, largest: int) -> Thresholds:
    found = find_thresholds(signs, largest, signs(np.arange(1)).shape[1])
    integers = np.arange(-largest, largest + 1)
    assert found is not None
    np.testing.assert_array_equal(found(integers[:, None]), signs(integers))
    return found


numbers = st.floats(-3, 3, width=32)
channel = st.tuples(
    numbers | st.just(0.0),  # gamma, of both signs and zero
    numbers | st.just(0.0),
    st.integers(-20, 20) | numbers,  # a mean that is an integer makes ties
    st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 400.0]),
)


@given(st.lists(channel, min_size=1, max_size=9), st.integers(1, 20))
def test_thresholds_are_the_batch_norm_that_they_stand_for(channels, largest):
    check(batch_norm(*zip(*channels, strict=True)), largest)


@given(st.lists(st.booleans(), min_size=1, max_size=12).map(lambda row: np.array(row)[:, None]))
def test_signs_that_change_more_than_once_have_no_threshold(row):
    padded = np.concatenate([row, np.repeat(row[-1:], 1 - len(row) % 2, axis=0)])
    largest = len(padded) // 2

    def signs(integers: np.ndarray) -> np.ndarray:
        return padded[integers + largest]

    changes = (padded[1:] != padded[:-1]).sum()
    assert largest == 0 or (find_thresholds(signs, largest, 1) is None) == (changes > 1)


def test_ties_count_as_plus_one_and_a_channel_may_never_change():
    found = check(batch_norm([1, -1], [0, 0], [3, 3], [0.999, 0.999]), 9)
    assert found.values.tolist() == [3, 3]
    assert found.descending.tolist() == [False, True]
    found = check(batch_norm([0, 0, 0], [0.5, -0.5, 0], [1, 1, 1], [1, 1, 1]), 5)
    assert found.values.tolist() == [-5, 6, -5]
    assert not found.descending.any()


def test_one_channel_with_two_changes_is_enough():
    def signs(integers: np.ndarray) -> np.ndarray:
        return np.stack([integers > 1, abs(integers) < 3], axis=1)

    assert find_thresholds(signs, 4, 2) is None
    assert find_thresholds(lambda integers: signs(integers)[:, :1], 4, 1) is not None


@pytest.mark.parametrize("rising", [True, False])
def test_integers_are_tried_in_parts_and_none_is_lost_between_them(monkeypatch, rising: bool):
    monkeypatch.setattr(thresholds, "CHUNK", 14)  # 7 integers at a time for two channels
    for change in (-499, -498, 0, 77, 500):
        asked: list[int] = []

        def signs(integers: np.ndarray, asked=asked, change=change) -> np.ndarray:
            asked.extend(integers.tolist())
            first = (integers >= change) if rising else (integers < change)
            return np.stack([first, integers >= 0], axis=1)

        found = find_thresholds(signs, 500, 2)
        assert sorted(asked) == list(range(-500, 501))
        assert found.values.tolist() == [change if rising else change - 1, 0]
        assert found.descending.tolist() == [not rising, False]


def test_the_smallest_type_holds_the_thresholds():
    for at, dtype in ((127, np.int8), (128, np.int16), (-128, np.int8), (-129, np.int16), (32768, np.int32)):
        found = find_thresholds(lambda integers, at=at: (integers >= at)[:, None], 40_000, 1)
        assert found.values.dtype == dtype
        assert found.values.tolist() == [at]
