"""Symbols as a stream of bits under a Huffman code, and back."""

from __future__ import annotations

from itertools import repeat

import numpy as np

from trainer.inference.bit_fields import check_end, write_fields
from trainer.inference.container import DamagedError
from trainer.inference.huffman_code import canonical_codes, decoding_table

WINDOW_BYTES = 3
"""A code of 15 bits that begins at any bit of a byte ends in the second byte after it."""
BLOCK = 2**16
"""Bytes that are decoded at once: each of their bits takes a few bytes of memory."""


def encode(symbols: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the codes of symbols, one after another; of a single symbol, however often it comes, nothing.

    Args:
        symbols: uint8 [n].
        lengths: uint8 [alphabet], as `code_lengths` returns them for these symbols.

    Returns:
        uint8 [m].
    """
    if np.count_nonzero(lengths) < 2:
        return np.zeros(0, np.uint8)
    return write_fields(canonical_codes(lengths)[symbols], lengths[symbols])


def decode(stream: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    """Return the symbols of a stream.

    For every bit it is looked up, all at once, which code begins there. A short loop then goes from code to code.

    Args:
        stream: uint8 [m].
        lengths: uint8 [alphabet], as `read_lengths` returns them.
        count: of symbols.

    Returns:
        uint8 [count].

    Raises:
        DamagedError: the stream ends before them, or goes on behind them.
    """
    used = np.flatnonzero(lengths)
    if len(used) < 2:
        check_end(stream, 0)
        return np.full(count, used[0], np.uint8)
    if count * int(lengths[used].min()) > 8 * len(stream):
        raise DamagedError(f"a stream of {len(stream):,} bytes is too short for {count:,} symbols.")
    table, widths = decoding_table(lengths)
    windows = np.concatenate([stream, np.zeros(WINDOW_BYTES - 1, np.uint8)])
    parts, done, bit = [], 0, 0
    while done < count and bit < 8 * len(stream):
        block = bit // 8
        found = _windows(windows[block : block + BLOCK + WINDOW_BYTES - 1], int(lengths.max()))
        steps, bit = _walk(widths[found].tobytes(), bit - 8 * block, count - done)
        bit += 8 * block
        parts.append(table[found[steps]])
        done += len(steps)
    if done < count:
        raise DamagedError(f"a stream ends after {done:,} of {count:,} symbols.")
    check_end(stream, bit)
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def _windows(data: np.ndarray, width: int) -> np.ndarray:
    """Return the number that the next `width` bits make, for each bit but those of the last two bytes."""
    numbers = data.astype(np.uint32)
    words = numbers[:-2] << 16 | numbers[1:-1] << 8 | numbers[2:]
    shifts = np.arange(8 * WINDOW_BYTES - width, 8 * WINDOW_BYTES - width - 8, -1, dtype=np.uint32)
    return ((words[:, None] >> shifts) & np.uint32((1 << width) - 1)).reshape(-1)


def _walk(widths: bytes, bit: int, most: int) -> tuple[list[int], int]:
    """Return at which bits codes begin, and where the one after them does, perhaps in the next block."""
    steps: list[int] = []
    keep = steps.append
    end = len(widths)
    for _ in repeat(None, most):
        if bit >= end:
            break
        keep(bit)
        bit += widths[bit]
    return steps, bit
