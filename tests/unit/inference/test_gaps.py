"""Gaps between entries: positions come back, whatever lies between them, and those that lead outside are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline.deploy.inference.container import DamagedError
from hookline.deploy.inference.huffman import MAX_BITS, from_gaps, to_gaps

positions = st.sets(st.integers(0, 3000), max_size=60).map(lambda found: np.array(sorted(found), np.int64))


@given(positions, st.integers(1, MAX_BITS))
def test_positions_come_back(places: np.ndarray, bits: int):
    size = int(places[-1]) + 1 if len(places) else 0
    numbers = to_gaps(places, bits)
    assert numbers.size == 0 or numbers.max() < 2**bits
    np.testing.assert_array_equal(from_gaps(numbers, bits, len(places), size), places)


@pytest.mark.parametrize(
    ("places", "bits", "numbers"),
    [
        ([0, 1, 2], 3, [0, 0, 0]),
        ([7], 3, [7, 0]),  # the filler is 7: seven places on, without an entry
        ([13, 14], 3, [7, 6, 0]),
        ([2, 5], 1, [1, 1, 0, 1, 1, 0]),
        ([254, 510], 8, [254, 255, 0]),
    ],
)
def test_a_number_counts_the_places_before_an_entry_and_the_largest_one_is_a_filler(places, bits, numbers):
    assert to_gaps(np.array(places, np.int64), bits).tolist() == numbers
    assert from_gaps(np.array(numbers, np.uint8), bits, len(places), 600).tolist() == places


def test_gaps_that_lead_elsewhere_are_refused():
    for numbers, kept, size in (
        ([3, 0], 3, 20),  # too few entries
        ([3, 0], 1, 20),  # too many
        ([3, 0], 2, 4),  # the last one lies at 4
        ([3, 7], 1, 20),  # a filler at the end leads nowhere
    ):
        with pytest.raises(DamagedError):
            from_gaps(np.array(numbers, np.uint8), 3, kept, size)
