"""Means, deviations and paired differences."""

from __future__ import annotations

import pytest

from hookline.scripts.comparison.comparison import difference, spread


def test_spread_is_the_mean_and_the_sample_deviation():
    found = spread([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.deviation == pytest.approx(1.5275252)  # divided by 2, not by 3
    assert str(found) == "2.3333 ± 1.5275"
    assert str(spread([0.5])) == "0.5000"
    assert str(spread([None, None])) == str(spread([])) == "-"
    assert str(spread([0.5, None, 0.7])) == "0.6000 ± 0.1414 (2 of 3)"


def test_differences_are_taken_seed_by_seed():
    found = difference({0: 0.5, 1: 0.6, 2: 0.9}, {1: 0.7, 2: 0.9, 7: 0.1})
    assert (found.higher, found.lower, found.spread.count) == (1, 0, 2)
    assert found.spread.mean == pytest.approx(0.05)
    assert found.describe("max") == "+0.0500 ± 0.0707, better in 1 of 2, equal in 1"
    assert found.describe("min") == "+0.0500 ± 0.0707, better in 0 of 2, equal in 1"
    assert found.describe(None) == "+0.0500 ± 0.0707, higher in 1 of 2, equal in 1"
    assert difference({0: 0.5}, {0: 0.4}).describe("min") == "-0.1000, better in 1 of 1"
    assert difference({0: None, 1: 0.5}, {0: 0.4, 2: 0.5}).describe("max") == "-"
