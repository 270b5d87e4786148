"""Whole numbers of given widths, one after another in one stream of bits, the highest bit of each first."""

from __future__ import annotations

import numpy as np

from trainer.inference.container import DamagedError


def write_fields(values: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Return a stream that holds numbers; zero bits fill its last byte.

    Args:
        values: whole numbers of at least 0 [n].
        widths: bits of each [n], which hold it.

    Returns:
        uint8 [ceil(sum of widths / 8)].
    """
    widths = np.asarray(widths, np.int64)
    starts = np.cumsum(widths) - widths
    bits = np.zeros(int(widths.sum()), np.uint8)
    for place in range(int(widths.max(initial=0))):
        reached = widths > place
        bits[starts[reached] + place] = (values[reached] >> (widths[reached] - 1 - place)) & 1
    return np.packbits(bits)


def read_fields(stream: np.ndarray, width: int, count: int) -> np.ndarray:
    """Return numbers that all have one width.

    Args:
        stream: uint8 [m], as `write_fields` wrote it.
        width: bits of each, 1 to 8.
        count: of numbers.

    Returns:
        uint8 [count].

    Raises:
        DamagedError: the stream is not as long as they are, or bits are set behind the last one.
    """
    check_end(stream, width * count)
    bits = np.unpackbits(stream)[: width * count].reshape(count, width)
    numbers = np.zeros(count, np.uint8)
    for place in range(width):
        numbers |= bits[:, place] << (width - 1 - place)
    return numbers


def check_end(stream: np.ndarray, bits: int) -> None:
    """Refuse a stream that is not as long as what it holds.

    Args:
        stream: uint8 [m].
        bits: that were written to it.

    Raises:
        DamagedError: it has other bytes than these bits take, or bits are set behind the last one.
    """
    if len(stream) != -(-bits // 8):
        raise DamagedError(f"a stream of {bits:,} bits has {len(stream):,} bytes.")
    if bits % 8 and stream[-1] & (0xFF >> bits % 8):
        raise DamagedError("a stream goes on behind its last number.")
