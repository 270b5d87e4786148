"""Store an array in the sparse form that takes the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from trainer.inference.bit_fields import write_fields
from trainer.inference.gaps import MAX_BITS, to_gaps
from trainer.inference.huffman import encode
from trainer.inference.huffman_code import MAX_SYMBOLS, code_lengths, write_lengths
from trainer.inference.sparse_weight import ALL, BITMAP, CODEBOOK, COLUMNS, FLOATS, GAPS, ROWS, SparseWeight

HEADER_BYTES = 80
"""What a further array costs in the header of a file, about: a small gain is not worth it."""


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
        """Return the bytes by which the file grows, about."""
        return self.data_bytes + HEADER_BYTES * len(self.parts)


def store(name: str, values: np.ndarray, *, huffman: bool, codebook: bool = True) -> Stored:
    """Return an array in the smallest form.

    Every form gives back every bit, also of -0.0 and NaN: an entry is left out where all of its bits are 0.

    Args:
        name: of the weight.
        values: float32.
        huffman: whether numbers may be stored under a Huffman code.
        codebook: whether values that come more than once may be stored once.
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
