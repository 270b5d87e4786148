"""Sums of signs from packed bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

WORD = 8  # bytes of a word: XOR and popcount work on uint64


def stream_bytes(count: int, bits: int) -> int:
    """Return the size of a stream in bytes."""
    return -(-count * bits // 8)


def pack_stream(values: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers as a stream, lowest bit first, zero-padded at the end: uint8 [ceil(n * bits / 8)]."""
    if bits == 8:
        return values.astype(np.uint8)
    digits = values.astype(np.uint8)[:, None] >> np.arange(bits, dtype=np.uint8) & np.uint8(1)
    return np.packbits(digits.reshape(-1), bitorder="little")


def unpack_stream(stream: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Return the numbers of a stream: uint8 [count]."""
    digits = np.unpackbits(stream, count=count * bits, bitorder="little")
    if bits == 1:
        return digits
    return np.packbits(digits.reshape(count, bits), axis=1, bitorder="little")[:, 0]


def encode_order(array: np.ndarray) -> np.ndarray:
    """Return the entries of a kernel in the order of files: one output channel after the other."""
    return np.moveaxis(array, -1, 0).reshape(-1)


def from_order(flat: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the array [..., channels] from its entries in the order of files."""
    return np.moveaxis(flat.reshape(shape[-1], *shape[:-1]), 0, -1)


def pack_last(positive: np.ndarray) -> np.ndarray:
    """Return bits packed along the last axis: uint8 [..., ceil(last / 8)]."""
    return np.packbits(positive, axis=-1, bitorder="little")


def unpack_last(packed: np.ndarray, last: int) -> np.ndarray:
    """Return bits packed by `pack_last`: uint8 [..., last]."""
    return np.unpackbits(packed, axis=-1, count=last, bitorder="little")


def as_words(packed: np.ndarray) -> np.ndarray:
    """Return rows of bytes as words, zero-padded at the end: uint64 [rows, ceil(bytes / 8)]."""
    rows, length = packed.shape
    missing = -length % WORD
    if missing or not packed.flags.c_contiguous:
        whole = np.zeros((rows, length + missing), np.uint8)
        whole[:, :length] = packed
        packed = whole
    return packed.view(np.uint64)


BLOCK = 2**15  # words of an intermediate result: 256 KiB, plus a byte per word for the counts
DEEPEST = 1000  # most words in a 16-bit sum: each adds up to 64 bits

Sums = Callable[[np.ndarray], np.ndarray]  # dot products of packed signs: uint64 [rows, words] to int32 [rows, units]
Products = Callable[[np.ndarray], np.ndarray]
"""Multiplies floats by a kernel of signs: float32 [rows, n] to float32 [rows, units]."""


@dataclass(frozen=True)
class Backend:
    """Functions that compute with kernels of signs."""

    sums: Callable[[np.ndarray, int], Sums]  # from a kernel uint64 [units, words] and the number of signs in a sum
    products: Callable[[np.ndarray], Products]  # from a kernel float32 [n, units] of -1 and +1


def numpy_sums(kernel: np.ndarray, count: int) -> Sums:
    """Return the function that computes dot products with a kernel in NumPy."""
    turned = np.ascontiguousarray(kernel.T)

    def sums(words: np.ndarray) -> np.ndarray:
        found = _count_differences(words, turned)
        np.multiply(found, -2, out=found)
        found += count
        return found

    return sums


def _count_differences(words: np.ndarray, turned: np.ndarray) -> np.ndarray:
    """Return the number of differing bits, int32 [rows, units], of uint64 [rows, words] and [words, units]."""
    deep, units = turned.shape
    found = np.zeros((len(words), units), np.int32)
    dtype = np.uint16 if deep <= DEEPEST else np.int32
    if deep * units <= BLOCK:
        rows = max(1, BLOCK // max(1, deep * units))
        for row in range(0, len(words), rows):
            differing = np.bitwise_count(words[row : row + rows, :, None] ^ turned)
            np.add.reduce(differing, axis=1, dtype=dtype, out=found[row : row + rows])
        return found
    wide = max(1, BLOCK // deep)
    bits, counts = np.empty((deep, wide), np.uint64), np.empty((deep, wide), np.uint8)
    for unit in range(0, units, wide):
        some = turned[:, unit : unit + wide]
        differing, counted = bits[:, : some.shape[1]], counts[:, : some.shape[1]]
        for row in range(len(words)):
            np.bitwise_xor(words[row, :, None], some, out=differing)
            np.bitwise_count(differing, out=counted)
            np.add.reduce(counted, axis=0, dtype=dtype, out=found[row, unit : unit + wide])
    return found


NUMPY_BACKEND = Backend(numpy_sums, lambda kernel: lambda inputs: inputs @ kernel)
