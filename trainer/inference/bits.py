"""Numbers of few bits: streams of them in a file, and signs packed along the last axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

WORD = 8
"""Bytes of a word: XOR and popcount work on uint64."""


def stream_bytes(count: int, bits: int) -> int:
    """Return the bytes of a stream.

    Args:
        count: of numbers.
        bits: of each.
    """
    return -(-count * bits // 8)


def pack_stream(values: np.ndarray, bits: int) -> np.ndarray:
    """Return a stream of numbers, lowest bit first, zero bits at its end: uint8 [ceil(n * bits / 8)].

    Args:
        values: [n], whole numbers from 0 to 2**bits - 1.
        bits: 1 to 8.
    """
    if bits == 8:
        return values.astype(np.uint8)
    digits = values.astype(np.uint8)[:, None] >> np.arange(bits, dtype=np.uint8) & np.uint8(1)
    return np.packbits(digits.reshape(-1), bitorder="little")


def unpack_stream(stream: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Return the numbers of a stream: uint8 [count].

    Args:
        stream: uint8 [ceil(count * bits / 8)].
        count: of numbers.
        bits: 1 to 8.
    """
    digits = np.unpackbits(stream, count=count * bits, bitorder="little")
    if bits == 1:
        return digits
    return np.packbits(digits.reshape(count, bits), axis=1, bitorder="little")[:, 0]


def encode_order(array: np.ndarray) -> np.ndarray:
    """Return the entries of a kernel as a file holds them: all of an output channel together.

    Args:
        array: [..., channels].
    """
    return np.moveaxis(array, -1, 0).reshape(-1)


def from_order(flat: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the array whose `encode_order` is given: [..., channels].

    Args:
        flat: [n].
        shape: of the array.
    """
    return np.moveaxis(flat.reshape(shape[-1], *shape[:-1]), 0, -1)


def pack_signs(kernel: np.ndarray) -> np.ndarray:
    """Return the stream of a kernel's signs, 1 where it is above 0: uint8 [ceil(n / 8)].

    Args:
        kernel: [..., channels], each entry of a channel plus or minus one magnitude.
    """
    return np.packbits(encode_order(kernel) > 0, bitorder="little")


def packed_bytes(group: int, last: int) -> int:
    """Return the bytes that signs take along the last axis.

    Args:
        group: signs that are packed together, with zero bits after them up to a whole byte.
        last: length of the axis, a multiple of the group.
    """
    return last // group * -(-group // 8)


def pack_last(positive: np.ndarray, group: int) -> np.ndarray:
    """Return bits packed along the last axis: uint8 [..., packed_bytes(group, last)].

    Args:
        positive: bool or uint8 [..., last].
        group: bits that are packed together.
    """
    shape = positive.shape
    if group == shape[-1]:
        return np.packbits(positive, axis=-1, bitorder="little")
    grouped = np.packbits(positive.reshape(*shape[:-1], shape[-1] // group, group), axis=-1, bitorder="little")
    return grouped.reshape(*shape[:-1], packed_bytes(group, shape[-1]))


def unpack_last(packed: np.ndarray, group: int, last: int) -> np.ndarray:
    """Return the bits of `pack_last`: uint8 [..., last].

    Args:
        packed: uint8 [..., packed_bytes(group, last)].
        group: bits that are packed together.
        last: length of the last axis.
    """
    if group == last:
        return np.unpackbits(packed, axis=-1, count=last, bitorder="little")
    lead = packed.shape[:-1]
    grouped = packed.reshape(*lead, last // group, -(-group // 8))
    return np.unpackbits(grouped, axis=-1, count=group, bitorder="little").reshape(*lead, last)


def as_words(packed: np.ndarray) -> np.ndarray:
    """Return bytes of the last axis as words, with zero bytes at their end: uint64 [rows, ceil(bytes / 8)].

    Args:
        packed: uint8 [rows, bytes].
    """
    rows, length = packed.shape
    missing = -length % WORD
    if missing or not packed.flags.c_contiguous:
        whole = np.zeros((rows, length + missing), np.uint8)
        whole[:, :length] = packed
        packed = whole
    return packed.view(np.uint64) if math.prod(packed.shape) else np.empty((rows, packed.shape[1] // WORD), np.uint64)
