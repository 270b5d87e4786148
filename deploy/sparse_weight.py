"""Weights of sparse files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hookline.deploy.inference.huffman import (
    MAX_BITS,
    MAX_SYMBOLS,
    code_lengths,
    encode,
    to_gaps,
    write_fields,
    write_lengths,
)
from hookline.deploy.inference.sparse_file import ALL, BITMAP, CODEBOOK, COLUMNS, FLOATS, GAPS, ROWS, SparseWeight

MAX_ROUNDS = 300


def share_weights(values: np.ndarray, bits: int) -> np.ndarray:
    """Return each value as its nearest centroid, at most 2 ** bits different ones.

    The centroids start at equal distances from the lowest to the highest value, which keeps large weights, though rare,
    well represented (section 3.2). Pruned weights take no part and stay 0; no other becomes 0. If there are no more
    distinct values than that, each stays as it is, bit for bit.
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
    """Return the centroid of each value, float32, by Lloyd's algorithm; it always ends, and always the same way."""
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


HEADER_BYTES = 80
"""Approximate cost of a further array in the header of a file: a smaller gain is not worth it."""


@dataclass(frozen=True)
class Stored:
    """Hold an array as it is stored.

    Attributes:
        weight: how.
        parts: its arrays, by what they hold.
    """

    weight: SparseWeight
    parts: dict[str, np.ndarray]

    @property
    def data_bytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def cost(self) -> int:
        """Return approximately the bytes by which the file grows."""
        return self.data_bytes + HEADER_BYTES * len(self.parts)


def store(name: str, values: np.ndarray, *, huffman: bool, codebook: bool = True) -> Stored:
    """Return an array in the smallest form.

    Every form gives back every bit, also of -0.0 and NaN: an entry is left out where all of its bits are 0.
    """
    everything = SparseWeight(name, values.shape, ROWS, ALL, values.size, FLOATS)
    forms = [Stored(everything, {})]
    for order in (ROWS, COLUMNS) if min(_matrix(values).shape) > 1 else (ROWS,):
        flat = _flat(values, order).view(np.uint32)
        places = np.flatnonzero(flat)
        sparse = replace(everything, order=order, kept=len(places))
        forms.append(Stored(replace(sparse, positions=BITMAP), {BITMAP: np.packbits(flat != 0)}))
        forms.extend(_gap_forms(sparse, places, huffman=huffman))
    forms = [forms[0], min(forms[1:], key=lambda form: form.cost)]  # the values of all others cost the same
    return min((_with_values(form, values, huffman, codebook) for form in forms), key=lambda form: form.cost)


def _gap_forms(weight: SparseWeight, places: np.ndarray, *, huffman: bool) -> Iterator[Stored]:
    for bits in range(1, MAX_BITS + 1):
        numbers = to_gaps(places, bits)
        if len(numbers) <= weight.size:
            described = replace(weight, positions=GAPS, gap_bits=bits, gaps=len(numbers))
            yield Stored(described, _numbers(GAPS, numbers, bits, huffman=huffman))


def _with_values(form: Stored, values: np.ndarray, huffman: bool, codebook: bool) -> Stored:
    """Return a form with the values of the entries that it keeps, in its order."""
    flat = _flat(values, form.weight.order)
    kept = flat if form.weight.positions == ALL else flat[flat.view(np.uint32) != 0]
    found = Stored(form.weight, {**form.parts, "values": kept})
    book, indices = np.unique(kept.view(np.uint32), return_inverse=True)
    if not codebook or not 1 <= len(book) <= MAX_SYMBOLS:
        return found
    numbers = _numbers("indices", indices.astype(np.uint8), (len(book) - 1).bit_length(), huffman=huffman)
    shared = replace(form.weight, values=CODEBOOK)
    return min(
        found, Stored(shared, {**form.parts, "codebook": book.view(np.float32), **numbers}), key=lambda e: e.cost
    )


def _numbers(name: str, numbers: np.ndarray, bits: int, *, huffman: bool) -> dict[str, np.ndarray]:
    """Return the arrays that hold numbers, in one width or under a Huffman code: what takes fewer bytes."""
    if bits == 0:
        return {}
    counts = np.bincount(numbers, minlength=1)
    lengths = code_lengths(counts)
    coded = int(counts @ lengths.astype(np.int64)) // 8 + len(lengths) // 2 + HEADER_BYTES
    if huffman and lengths.any() and coded < len(numbers) * bits // 8:
        return {name: encode(numbers, lengths), f"{name}_code": write_lengths(lengths)}
    return {name: write_fields(numbers, np.full(len(numbers), bits))}


def _matrix(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1]) if values.ndim > 1 and values.size else values.reshape(1, -1)


def _flat(values: np.ndarray, order: str) -> np.ndarray:
    """Return the entries row by row, or column by column of the matrix whose columns are the output channels."""
    matrix = _matrix(values)
    return np.ascontiguousarray(matrix if order == ROWS else matrix.T).reshape(-1)
