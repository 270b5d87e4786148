"""Canonical Huffman codes: symbols that are frequent take few bits; the lengths of the codes alone say what they are.

Huffman 1952; canonical codes as in RFC 1951, section 3.2.2: shorter codes come first, and among codes of one length
those of lower symbols. No code is longer than 15 bits, so a length takes 4.
"""

from __future__ import annotations

import numpy as np

from trainer.inference.bit_fields import read_fields, write_fields
from trainer.inference.container import DamagedError

MAX_LENGTH = 15
LENGTH_BITS = 4
MAX_SYMBOLS = 256


def code_lengths(counts: np.ndarray) -> np.ndarray:
    """Return the lengths of the best code with none longer than 15 bits: package-merge, Larmore and Hirschberg 1990.

    Args:
        counts: how often each symbol comes [symbols], at most 256 of them.

    Returns:
        uint8 [symbols]: 0 for a symbol that never comes. A single one that does has 1.
    """
    used = np.flatnonzero(counts)
    lengths = np.zeros(len(counts), np.uint8)
    if len(used) < 2:
        lengths[used] = 1
        return lengths
    leaf_weights, leaves = counts[used].astype(np.int64), np.eye(len(used), dtype=np.int64)
    weights, packages = leaf_weights[:0], leaves[:0]  # a package counts how often it holds each symbol
    for _ in range(MAX_LENGTH):
        pairs = len(weights) // 2 * 2
        weights = np.concatenate([leaf_weights, weights[:pairs:2] + weights[1:pairs:2]])
        packages = np.concatenate([leaves, packages[:pairs:2] + packages[1:pairs:2]])
        order = np.argsort(weights, kind="stable")
        weights, packages = weights[order], packages[order]
    lengths[used] = packages[: 2 * len(used) - 2].sum(axis=0)
    return lengths


def canonical_codes(lengths: np.ndarray) -> np.ndarray:
    """Return the code of each symbol, in its lowest bits.

    Args:
        lengths: uint8 [symbols], of a complete code.

    Returns:
        int64 [symbols], 0 for a symbol without one.
    """
    order = _in_order(lengths)
    spans = 1 << (MAX_LENGTH - lengths[order].astype(np.int64))  # how many numbers of 15 bits begin with the code
    codes = np.zeros(len(lengths), np.int64)
    codes[order] = (np.cumsum(spans) - spans) // spans
    return codes


def decoding_table(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which symbol any bits begin with, and the length of its code.

    Args:
        lengths: uint8 [symbols], of a complete code of at least two symbols.

    Returns:
        Symbols and lengths, uint8 [2 ** longest length] each.
    """
    order = _in_order(lengths)
    spans = 1 << (int(lengths.max()) - lengths[order].astype(np.int64))
    return np.repeat(order, spans).astype(np.uint8), np.repeat(lengths[order], spans)


def write_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return code lengths as a stream of 4 bits each, those behind the last symbol that has a code left out.

    Args:
        lengths: uint8 [symbols], of 0 to 15.
    """
    kept = lengths[: int(np.flatnonzero(lengths)[-1]) + 1]
    return write_fields(kept, np.full(len(kept), LENGTH_BITS))


def read_lengths(stream: np.ndarray, symbols: int) -> np.ndarray:
    """Return code lengths, once it is certain that each stream of bits has exactly one meaning under them.

    Args:
        stream: uint8 [m].
        symbols: that there may be, at most 256.

    Returns:
        uint8 [symbols].

    Raises:
        DamagedError: there are more lengths than symbols, or their codes overlap or leave room (Kraft's sum is not 1).
    """
    found = read_fields(stream, LENGTH_BITS, 2 * min(len(stream), MAX_SYMBOLS))
    if found[symbols:].any() or len(stream) > MAX_SYMBOLS // 2:
        raise DamagedError(f"a code has lengths for more than {symbols} symbols.")
    lengths = np.zeros(symbols, np.uint8)
    lengths[: len(found)] = found[:symbols]
    used = lengths[lengths > 0].astype(np.int64)
    if used.tolist() != [1] and (1 << (MAX_LENGTH - used)).sum() != 1 << MAX_LENGTH:
        raise DamagedError("the lengths of a Huffman code do not make one (Kraft's sum is not 1).")
    return lengths


def _in_order(lengths: np.ndarray) -> np.ndarray:
    """Return the symbols that have a code, in the order of their codes."""
    used = np.flatnonzero(lengths)
    return used[np.argsort(lengths[used], kind="stable")]
