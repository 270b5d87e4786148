"""Where the entries of a sparse array are, as the gaps between them.

Deep Compression (Han et al. 2016, arXiv 1510.00149, section 2) stores the difference of two positions in a few bits,
and where it is too large for them, an entry of value 0 in between. Here the largest number of these bits is such a
filler by itself: it moves on without an entry, so no value has to be stored for it.
"""

from __future__ import annotations

import numpy as np

from trainer.inference.container import DamagedError

MAX_BITS = 8


def to_gaps(places: np.ndarray, bits: int) -> np.ndarray:
    """Return positions as numbers: how many places lie before each entry, or the filler, which moves on that far.

    Args:
        places: int64 [n], rising, of at least 0.
        bits: of a number, 1 to 8. 2 ** bits - 1 is the filler.

    Returns:
        uint8 [n + fillers].
    """
    filler = (1 << bits) - 1
    gaps = np.diff(places, prepend=-1) - 1
    fillers = gaps // filler
    numbers = np.full(len(gaps) + int(fillers.sum()), filler, np.uint8)
    numbers[np.cumsum(fillers + 1) - 1] = gaps % filler
    return numbers


def from_gaps(numbers: np.ndarray, bits: int, kept: int, size: int) -> np.ndarray:
    """Return positions.

    Args:
        numbers: uint8 [n + fillers], as `to_gaps` returns them.
        bits: of a number.
        kept: entries that there should be.
        size: of the array.

    Returns:
        int64 [kept], rising, below `size`.

    Raises:
        DamagedError: there is another number of entries, or one lies outside.
    """
    filler = (1 << bits) - 1
    is_entry = numbers != filler
    places = np.cumsum(numbers + is_entry.astype(np.int64))[is_entry] - 1
    if len(places) != kept or (len(numbers) and not is_entry[-1]):
        raise DamagedError(f"the gaps of an array lead to {len(places):,} entries, expected {kept:,}.")
    if kept and places[-1] >= size:
        raise DamagedError(f"an entry lies at {places[-1]:,}, but the array has {size:,}.")
    return places
