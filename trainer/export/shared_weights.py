"""Give many weights few values to share: k-means on a line, as in Deep Compression (Han et al. 2016, section 3)."""

from __future__ import annotations

import numpy as np

MAX_ROUNDS = 300


def share_weights(values: np.ndarray, bits: int) -> np.ndarray:
    """Return each value as the centroid that is nearest to it, at most 2 ** bits different ones.

    The centroids start at equal distances from the lowest to the highest value, which keeps large weights, rare as
    they are, well represented (section 3.2). Weights of 0, pruned ones, take no part and stay 0; no other becomes 0.
    Where there are no more different values than that, each stays as it is, bit for bit.

    Args:
        values: float32, finite, of any shape.
        bits: 1 to 8.

    Returns:
        float32, of the same shape.
    """
    kept = values[values != 0]
    distinct, inverse = np.unique(kept, return_inverse=True)
    if len(distinct) <= 1 << bits:
        return values
    counts = np.bincount(inverse)
    shared = np.zeros_like(values)  # also where a 0 is negative
    shared[values != 0] = _nearest(distinct.astype(np.float64), counts, 1 << bits)[inverse]
    return shared


def _nearest(distinct: np.ndarray, counts: np.ndarray, centroids: int) -> np.ndarray:
    """Return the centroid of each value, float32, by Lloyd's algorithm; it always ends, and always the same way.

    Args:
        distinct: values, rising, none of them 0.
        counts: how often each comes.
        centroids: how many there are at the start; one that no value is nearest to is left out.
    """
    total = np.concatenate([[0.0], np.cumsum(distinct * counts)])
    count = np.concatenate([[0], np.cumsum(counts)])
    centers = np.linspace(distinct[0], distinct[-1], centroids)
    ends = np.zeros(0, np.int64)
    for _ in range(MAX_ROUNDS):
        found = np.searchsorted(distinct, (centers[1:] + centers[:-1]) / 2)  # values below belong to the lower one
        bounds = np.unique(np.concatenate([[0], found, [len(distinct)]]))
        if np.array_equal(bounds, ends):
            break
        ends = bounds
        centers = (total[ends[1:]] - total[ends[:-1]]) / (count[ends[1:]] - count[ends[:-1]])
    book = centers.astype(np.float32)
    first = distinct[ends[:-1]].astype(np.float32)
    book = np.where(book == 0, first, book)  # values around 0 whose mean is 0: as 0 it would mean "pruned"
    return np.repeat(book, np.diff(ends))
