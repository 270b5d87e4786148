"""Sparse files: their Huffman codes and gaps, and how to read them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookline.deploy.inference.container import SPARSE, expand_json, read_container, reading, require

MAX_BITS = 8


def to_gaps(places: np.ndarray, bits: int) -> np.ndarray:
    """Return positions as gaps: places skipped before each entry; a filler skips 2^bits - 1 places without an entry."""
    filler = (1 << bits) - 1
    gaps = np.diff(places, prepend=-1) - 1
    fillers = gaps // filler
    numbers = np.full(len(gaps) + int(fillers.sum()), filler, np.uint8)
    numbers[np.cumsum(fillers + 1) - 1] = gaps % filler
    return numbers


def from_gaps(numbers: np.ndarray, bits: int, kept: int, size: int) -> np.ndarray:
    """Return the positions that gaps encode."""
    filler = (1 << bits) - 1
    is_entry = numbers != filler
    places = np.cumsum(numbers + is_entry.astype(np.int64))[is_entry] - 1
    is_whole = len(places) == kept and (not len(numbers) or bool(is_entry[-1]))
    require(is_whole, f"the gaps of an array lead to {len(places):,} entries, expected {kept:,}.")
    require(not kept or places[-1] < size, f"the gaps of an array lead beyond its {size:,} entries.")
    return places


def write_fields(values: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Return a stream of numbers with the given bit widths; zero bits fill its last byte."""
    widths = np.asarray(widths, np.int64)
    starts = np.cumsum(widths) - widths
    bits = np.zeros(int(widths.sum()), np.uint8)
    for place in range(int(widths.max(initial=0))):
        reached = widths > place
        bits[starts[reached] + place] = (values[reached] >> (widths[reached] - 1 - place)) & 1
    return np.packbits(bits)


def read_fields(stream: np.ndarray, width: int, count: int) -> np.ndarray:
    """Return the numbers of a stream in which all have the same bit width."""
    check_end(stream, width * count)
    bits = np.unpackbits(stream)[: width * count].reshape(count, width)
    return np.packbits(bits, axis=1)[:, 0] >> (8 - width)


def check_end(stream: np.ndarray, bits: int) -> None:
    """Refuse a stream whose length does not match its content."""
    require(len(stream) == -(-bits // 8), f"a stream of {bits:,} bits has {len(stream):,} bytes.")


MAX_LENGTH = 15
LENGTH_BITS = 4
MAX_SYMBOLS = 256


def code_lengths(counts: np.ndarray) -> np.ndarray:
    """Return the lengths of the optimal code of at most 15 bits, by package-merge (Larmore and Hirschberg 1990)."""
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
    """Return the canonical code of each symbol, in the lowest bits."""
    order = _in_order(lengths)
    spans = 1 << (MAX_LENGTH - lengths[order].astype(np.int64))  # how many 15-bit numbers begin with the code
    codes = np.zeros(len(lengths), np.int64)
    codes[order] = (np.cumsum(spans) - spans) // spans
    return codes


def write_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return code lengths as a stream of 4 bits each, without those after the last symbol that has a code."""
    kept = lengths[: int(np.flatnonzero(lengths)[-1]) + 1]
    return write_fields(kept, np.full(len(kept), LENGTH_BITS))


def read_lengths(stream: np.ndarray, symbols: int) -> np.ndarray:
    """Return code lengths, after checking that they decode every stream of bits in exactly one way."""
    found = read_fields(stream, LENGTH_BITS, 2 * min(len(stream), MAX_SYMBOLS))
    has_few = not found[symbols:].any() and len(stream) <= MAX_SYMBOLS // 2
    require(has_few, f"a code has lengths for more than {symbols} symbols.")
    lengths = np.zeros(symbols, np.uint8)
    lengths[: len(found)] = found[:symbols]
    used = lengths[lengths > 0].astype(np.int64)
    is_code = used.tolist() == [1] or (1 << (MAX_LENGTH - used)).sum() == 1 << MAX_LENGTH
    require(is_code, "the lengths of a Huffman code do not make one (Kraft's sum is not 1).")
    return lengths


def _in_order(lengths: np.ndarray) -> np.ndarray:
    """Return the symbols that have a code, in the order of their codes."""
    used = np.flatnonzero(lengths)
    return used[np.argsort(lengths[used], kind="stable")]


WINDOW_BYTES = 3  # A code of 15 bits that begins at any bit of a byte ends in the second byte after it
BLOCK = 2**16  # bytes decoded at a time: each of their bits takes a few bytes of memory


def encode(symbols: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenated codes of symbols, which are empty if only one symbol has a code."""
    if np.count_nonzero(lengths) < 2:
        return np.zeros(0, np.uint8)
    return write_fields(canonical_codes(lengths)[symbols], lengths[symbols])


def decode(stream: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    """Return the symbols of a stream: all bits are looked up at once, then a short loop steps from code to code."""
    order = _in_order(lengths)
    if len(order) < 2:
        check_end(stream, 0)
        return np.full(count, order[0], np.uint8)
    has_room = count * int(lengths[order[0]]) <= 8 * len(stream)
    require(has_room, f"a stream of {len(stream):,} bytes is too short for {count:,} symbols.")
    longest = int(lengths.max())
    spans = 1 << (longest - lengths[order].astype(np.int64))  # how many windows begin with each code
    table, widths = np.repeat(order, spans).astype(np.uint8), np.repeat(lengths[order], spans)
    padded = np.concatenate([stream, np.zeros(WINDOW_BYTES - 1, np.uint8)])
    parts, done, bit = [], 0, 0
    while done < count and bit < 8 * len(stream):
        block = bit // 8
        found = _windows(padded[block : block + BLOCK + WINDOW_BYTES - 1], longest)
        steps, bit = _walk(widths[found].tobytes(), bit - 8 * block, count - done)
        bit += 8 * block
        parts.append(table[found[steps]])
        done += len(steps)
    require(done == count, f"a stream ends after {done:,} of {count:,} symbols.")
    check_end(stream, bit)
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def _windows(data: np.ndarray, width: int) -> np.ndarray:
    """Return the number formed by the next `width` bits, for each bit except those of the last two bytes."""
    numbers = data.astype(np.uint32)
    words = numbers[:-2] << 16 | numbers[1:-1] << 8 | numbers[2:]
    shifts = np.arange(8 * WINDOW_BYTES - width, 8 * WINDOW_BYTES - width - 8, -1, dtype=np.uint32)
    return ((words[:, None] >> shifts) & np.uint32((1 << width) - 1)).reshape(-1)


def _walk(widths: bytes, bit: int, most: int) -> tuple[list[int], int]:
    """Return the bits at which codes begin, and that of the next code, perhaps in the next block."""
    steps: list[int] = []
    end = len(widths)
    while bit < end and len(steps) < most:
        steps.append(bit)
        bit += widths[bit]
    return steps, bit


ALL, BITMAP, GAPS = "all", "bitmap", "gaps"
"""Positions: all entries are stored; a bitmap marks the stored ones; gaps between the stored ones."""
FLOATS, CODEBOOK = "float32", "codebook"  # values: stored directly, or as indices into a few shared values
ROWS, COLUMNS = "rows", "columns"  # order: row-major, or each output channel (last axis) separately
GAP_FIELDS = ("gap_bits", "gaps")

Parts = Mapping[str, np.ndarray]
"""Arrays of one weight in the file, by content: "bitmap", or "gaps" and "gaps_code" (lengths of a Huffman code;
without them all numbers have the same width); "values", or "codebook", "indices" and "indices_code"."""


@dataclass(frozen=True)
class SparseWeight:
    """Describe how an array is stored."""

    name: str
    shape: tuple[int, ...]  # of the dense array
    order: str  # in which entries are counted: ROWS or COLUMNS
    positions: str  # ALL, BITMAP or GAPS
    kept: int  # entries that are stored; the others are 0
    values: str  # FLOATS or CODEBOOK
    gap_bits: int = 0  # for GAPS: bits per number
    gaps: int = 0  # for GAPS: the count of numbers, including fillers

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def as_json(self) -> dict[str, Any]:
        values = {**asdict(self), "shape": list(self.shape)}
        return {name: value for name, value in values.items() if self.positions == GAPS or name not in GAP_FIELDS}


def from_json(value: Mapping[str, Any]) -> SparseWeight:
    """Return the description given by JSON values."""
    weight = SparseWeight(**{**value, "shape": tuple(value["shape"])})
    fits = 0 <= weight.kept <= weight.size and 0 <= weight.gaps <= weight.size
    fits = fits and (weight.positions != ALL or weight.kept == weight.size)
    fits = fits and (weight.positions != GAPS or weight.gap_bits in range(1, MAX_BITS + 1))
    require(fits, f"weight {weight.name!r:.40} has counts that do not fit its shape.")
    return weight


def to_dense(weight: SparseWeight, parts: Parts) -> np.ndarray:
    """Return the dense array."""
    places = _read_places(weight, parts)
    values = _read_values(weight, parts)
    if places is None:
        flat = values
    else:
        flat = np.zeros(weight.size, np.float32)
        flat[places] = values
    if weight.order == ROWS:
        return flat.reshape(weight.shape)
    return np.ascontiguousarray(flat.reshape(weight.shape[-1], -1).T).reshape(weight.shape)


def _read_places(weight: SparseWeight, parts: Parts) -> np.ndarray | None:
    """Return the positions of the stored entries, or None if all are stored."""
    if weight.positions == ALL:
        return None
    if weight.positions == GAPS:
        gaps = _read_symbols(parts, GAPS, weight.gap_bits, weight.gaps)
        return from_gaps(gaps, weight.gap_bits, weight.kept, weight.size)
    bitmap = parts[BITMAP]
    check_end(bitmap, weight.size)
    places = np.flatnonzero(np.unpackbits(bitmap)[: weight.size])
    require(len(places) == weight.kept, f"a bitmap has {len(places):,} entries, expected {weight.kept:,}.")
    return places


def _read_values(weight: SparseWeight, parts: Parts) -> np.ndarray:
    if weight.values == FLOATS:
        values = parts["values"]
        has_all = len(values) == weight.kept
        require(has_all, f"weight {weight.name[:40]!r} has {len(values):,} values, expected {weight.kept:,}.")
        return values.copy()
    book = parts["codebook"]
    require(len(book) <= MAX_SYMBOLS, f"a codebook has {len(book):,} values, expected {MAX_SYMBOLS} at most.")
    return book[_read_symbols(parts, "indices", (len(book) - 1).bit_length(), weight.kept)]


def _read_symbols(parts: Parts, name: str, bits: int, count: int) -> np.ndarray:
    """Return numbers stored with the same width, or with a Huffman code if the file has its lengths."""
    if f"{name}_code" in parts:
        return decode(parts[name], read_lengths(parts[f"{name}_code"], 1 << bits), count)
    return read_fields(parts[name], bits, count) if bits else np.zeros(count, np.uint8)


NETWORK = "network"
"""The array with the compressed config of the Keras model, which would otherwise be most of the metadata."""
LEAST, TIMES = 2**26, 2**12
"""Bytes of memory that any file may claim, and the multiple of its size that a larger file may claim."""


def read_sparse_network(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the config of the Keras model in a sparse file, and its weights."""
    model, tensors = read_container(path, SPARSE)
    with reading(path, "sparse file"):
        weights = [from_json(value) for value in model["weights"]]
        claimed, file_bytes = 4 * sum(weight.size for weight in weights), Path(path).stat().st_size
        most = max(LEAST, TIMES * file_bytes)
        require(claimed <= most, f"its {file_bytes:,} bytes claim {claimed:,} of memory, more than {most:,}.")
        parts: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
        for name, tensor in tensors.items():
            index, _, part = name.partition(".")
            parts[index][part] = tensor
        dense = {weight.name: to_dense(weight, parts[str(index)]) for index, weight in enumerate(weights)}
        return expand_json(tensors[NETWORK]), dense
