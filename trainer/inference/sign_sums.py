"""Sums of products of signs: XOR counts where two of them differ, in blocks that stay in the cache.

With n signs, of which d differ, the sum of the products is n - 2 d. A matrix product in float32 on the unpacked signs
is no faster where NumPy counts bits with AVX2, even without the time to unpack them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

BLOCK = 2**15
"""Words of an intermediate result: 256 KiB, and as many bytes for the counts."""
DEEPEST = 1000
"""Words of a sum in 16 bits: 64 of each may differ."""


class SignSums(Protocol):
    """Compute sums of products of signs."""

    def __call__(self, words: np.ndarray) -> np.ndarray:
        """Return the sums: int32 [rows, units].

        Args:
            words: uint64 [rows, words]; bits that are no sign are 0.
        """


Products = Callable[[np.ndarray], np.ndarray]
"""Multiplies floats with a kernel of signs: float32 [rows, n] to float32 [rows, units]."""


@dataclass(frozen=True)
class Backend:
    """Hold what computes with kernels of signs.

    Attributes:
        sums: makes sums of products of signs, from a kernel uint64 [units, words] and the signs of a sum.
        products: makes products of floats with signs, from a kernel float32 [n, units] of -1 and +1.
    """

    sums: Callable[[np.ndarray, int], SignSums]
    products: Callable[[np.ndarray], Products]


def numpy_sums(kernel: np.ndarray, count: int) -> SignSums:
    """Return what computes sums with a kernel, in NumPy.

    Args:
        kernel: uint64 [units, words]; bits that are no sign are 0.
        count: signs of a sum.
    """
    turned = np.ascontiguousarray(kernel.T)

    def sums(words: np.ndarray) -> np.ndarray:
        found = np.empty((len(words), turned.shape[1]), np.int32)
        _count_differences(words, turned, found)
        np.multiply(found, -2, out=found)
        found += count
        return found

    return sums


def _count_differences(words: np.ndarray, turned: np.ndarray, found: np.ndarray) -> None:
    """Write how many bits differ to int32 [rows, units], from uint64 [rows, words] and [words, units]."""
    deep, units = turned.shape
    if deep > DEEPEST:
        _count_in_parts(words, turned, found)
        return
    if deep * units <= BLOCK:
        rows = max(1, BLOCK // max(1, deep * units))
        for row in range(0, len(words), rows):
            differing = np.bitwise_count(words[row : row + rows, :, None] ^ turned)
            np.add.reduce(differing, axis=1, dtype=np.uint16, out=found[row : row + rows])
        return
    wide = max(1, BLOCK // deep)
    bits, counts = np.empty((deep, wide), np.uint64), np.empty((deep, wide), np.uint8)
    for unit in range(0, units, wide):
        some = turned[:, unit : unit + wide]
        differing, counted = bits[:, : some.shape[1]], counts[:, : some.shape[1]]
        for row in range(len(words)):
            np.bitwise_xor(words[row, :, None], some, out=differing)
            np.bitwise_count(differing, out=counted)
            np.add.reduce(counted, axis=0, dtype=np.uint16, out=found[row, unit : unit + wide])


def _count_in_parts(words: np.ndarray, turned: np.ndarray, found: np.ndarray) -> None:
    found[:] = 0
    part = np.empty_like(found)
    for start in range(0, len(turned), DEEPEST):
        _count_differences(words[:, start : start + DEEPEST], turned[start : start + DEEPEST], part)
        found += part


NUMPY_BACKEND = Backend(numpy_sums, lambda kernel: lambda inputs: inputs @ kernel)
