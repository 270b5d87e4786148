"""Sparse files, read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookline.deploy.inference.container import MAX_RANK, REMEDY, SPARSE, expand_json, read_container, require
from hookline.deploy.inference.huffman import (
    MAX_BITS,
    MAX_SYMBOLS,
    check_end,
    decode,
    from_gaps,
    read_fields,
    read_lengths,
)
from hookline.trainer.errors import UserError

ALL, BITMAP, GAPS = "all", "bitmap", "gaps"
"""Positions: every entry is stored; a bitmap marks those that are; the gaps between those that are."""
FLOATS, CODEBOOK = "float32", "codebook"  # values: as they are; or as indices into a few shared values
ROWS, COLUMNS = "rows", "columns"  # orders: as the array lies in memory; or each output channel (last axis) separately
FIELDS = ("name", "shape", "order", "positions", "kept", "values")
GAP_FIELDS = ("gap_bits", "gaps")

Parts = Mapping[str, np.ndarray]
"""Arrays of the file that belong to one weight, by what they hold: "bitmap", "gaps" and "gaps_code" (lengths of a
Huffman code; without them all numbers have one width), "values", or "codebook", "indices" and "indices_code"."""


@dataclass(frozen=True)
class SparseWeight:
    """Describe how an array is stored."""

    name: str
    shape: tuple[int, ...]  # of the dense array
    order: str  # in which its entries are counted: ROWS or COLUMNS
    positions: str  # ALL, BITMAP or GAPS
    kept: int  # entries that are stored; the others are 0
    values: str  # FLOATS or CODEBOOK
    gap_bits: int = 0  # of GAPS: bits of a number
    gaps: int = 0  # of GAPS: how many numbers there are, fillers included

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def as_json(self) -> dict[str, Any]:
        fields = (*FIELDS, *(GAP_FIELDS if self.positions == GAPS else ()))
        return {name: list(self.shape) if name == "shape" else getattr(self, name) for name in fields}


def from_json(value: Any) -> SparseWeight:
    """Return the description that JSON values hold."""
    fields = {*FIELDS, *(GAP_FIELDS if isinstance(value, dict) and value.get("positions") == GAPS else ())}
    has_all = isinstance(value, dict) and set(value) == fields and isinstance(value["name"], str)
    require(has_all, "a weight is described by other fields than those that are written.")
    shape, owner = value["shape"], f"weight {value['name'][:40]!r}"
    is_shape = isinstance(shape, list) and len(shape) <= MAX_RANK and all(_is_count(each) for each in shape)
    require(is_shape, f"{owner} has no valid shape.")
    for name, known in (
        ("order", (ROWS, COLUMNS)),
        ("positions", (ALL, BITMAP, GAPS)),
        ("values", (FLOATS, CODEBOOK)),
    ):
        wanted = f"expected one of {', '.join(known)}."
        require(value[name] in known, f"{owner} has {name}={value[name]!r:.40}, {wanted}")
    weight = SparseWeight(**{**value, "shape": tuple(shape)})
    are_counts = all(_is_count(each) for each in (weight.kept, weight.gap_bits, weight.gaps))
    require(are_counts, f"{owner} has a count that is not a whole number of at least 0.")
    fits = weight.kept == weight.size if weight.positions == ALL else weight.kept <= weight.size
    fits = fits and (weight.order == ROWS or (len(shape) > 1 and weight.size > 0)) and weight.gaps <= weight.size
    fits = fits and (weight.positions != GAPS or 1 <= weight.gap_bits <= MAX_BITS)
    require(fits, f"{owner} has counts that do not fit its shape.")
    return weight


def to_dense(weight: SparseWeight, parts: Parts) -> np.ndarray:
    """Return the dense array."""
    left = dict(parts)
    places = _read_places(weight, left)
    values = _read_values(weight, left)
    require(not left, f"weight {weight.name[:40]!r} has an array {next(iter(left), '')[:20]!r} too many.")
    if places is None:
        flat = values
    else:
        no_zeros = bool(values.view(np.uint32).all())
        require(no_zeros, f"weight {weight.name[:40]!r} stores a 0 among the entries that are not.")
        flat = np.zeros(weight.size, np.float32)
        flat[places] = values
    if weight.order == ROWS:
        return flat.reshape(weight.shape)
    return np.ascontiguousarray(flat.reshape(weight.shape[-1], -1).T).reshape(weight.shape)


def _read_places(weight: SparseWeight, parts: dict[str, np.ndarray]) -> np.ndarray | None:
    """Return where the stored entries are, or None if all are stored."""
    if weight.positions == ALL:
        return None
    if weight.positions == GAPS:
        gaps = _read_symbols(parts, GAPS, weight.gap_bits, weight.gaps)
        return from_gaps(gaps, weight.gap_bits, weight.kept, weight.size)
    bitmap = _take(parts, BITMAP)
    check_end(bitmap, weight.size)
    places = np.flatnonzero(np.unpackbits(bitmap)[: weight.size])
    require(len(places) == weight.kept, f"a bitmap has {len(places):,} entries, expected {weight.kept:,}.")
    return places


def _read_values(weight: SparseWeight, parts: dict[str, np.ndarray]) -> np.ndarray:
    if weight.values == FLOATS:
        values = _take(parts, "values", np.float32)
        has_all = len(values) == weight.kept
        require(has_all, f"weight {weight.name[:40]!r} has {len(values):,} values, expected {weight.kept:,}.")
        return values.copy()
    book = _take(parts, "codebook", np.float32)
    is_book = 1 <= len(book) <= MAX_SYMBOLS
    require(is_book, f"a codebook has {len(book):,} values, expected 1 to {MAX_SYMBOLS}.")
    indices = _read_symbols(parts, "indices", (len(book) - 1).bit_length(), weight.kept)
    largest = int(indices.max(initial=0))
    require(largest < len(book), f"an index of {largest} points behind a codebook of {len(book)} values.")
    return book[indices]


def _read_symbols(parts: dict[str, np.ndarray], name: str, bits: int, count: int) -> np.ndarray:
    """Return numbers that are stored in one width, or under a Huffman code if the file has its lengths."""
    if f"{name}_code" in parts:
        lengths = read_lengths(_take(parts, f"{name}_code"), 1 << bits)
        return decode(_take(parts, name), lengths, count)
    return read_fields(_take(parts, name), bits, count) if bits else np.zeros(count, np.uint8)


def _take(parts: dict[str, np.ndarray], name: str, dtype: type[np.generic] = np.uint8) -> np.ndarray:
    array = parts.pop(name, None)
    if array is None or array.dtype != dtype or array.ndim != 1:
        raise UserError(f"it has no flat array of {np.dtype(dtype).name} {name!r} where one is expected.")
    return array


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


NETWORK = "network"
"""The array with the config of the Keras model: most of what such a file would have to say uncompressed."""
LEAST, TIMES = 2**26, 2**12
"""Memory that a file may claim whatever its size, and how many times its size it may claim beyond that."""


def read_sparse(path: Path) -> dict[str, np.ndarray]:
    """Return the weights of a sparse file."""
    return read_sparse_network(path)[1]


def read_sparse_network(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the config of the Keras model in a sparse file, and its weights."""
    model, tensors = read_container(path, SPARSE)
    try:
        has_all = {"weights"} <= set(model) <= {"weights", "about"} and NETWORK in tensors
        require(has_all, "its description of the model says more or less than network and weights.")
        require(isinstance(model.get("about", {}), dict), "what it says about the network is not a mapping.")
        network = expand_json(tensors.pop(NETWORK), NETWORK)
        if not isinstance(network, dict):
            raise UserError("its network is not a mapping.")
        weights = _describe(model["weights"])
        claimed, file_bytes = 4 * sum(weight.size for weight in weights), Path(path).stat().st_size
        most = max(LEAST, TIMES * file_bytes)
        require(claimed <= most, f"its {file_bytes:,} bytes claim {claimed:,} of memory, more than {most:,}.")
        return network, _decode(weights, tensors)
    except UserError as error:
        raise UserError(f"{path} is not a valid sparse file: {error} {REMEDY}") from error
    except (MemoryError, OSError) as error:
        reason = getattr(error, "strerror", "") or "it is too large for the memory"
        raise UserError(f"{path} cannot be read: {reason}. Expected a sparse file.") from error


def tensor_name(index: int, part: str) -> str:
    """Return the name of an array in the file."""
    return f"{index}.{part}"


def _describe(values: Any) -> list[SparseWeight]:
    require(isinstance(values, list), "its weights are not a list.")
    weights = [from_json(value) for value in values]
    require(len({weight.name for weight in weights}) == len(weights), "two of its weights have one name.")
    return weights


def _decode(weights: list[SparseWeight], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    parts: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, tensor in tensors.items():
        index, _, part = name.partition(".")
        parts[index][part] = tensor
    dense = {weight.name: to_dense(weight, parts.pop(str(index), {})) for index, weight in enumerate(weights)}
    require(not parts, f"array '{next(iter(parts), '')[:40]}...' belongs to no weight.")
    return dense
