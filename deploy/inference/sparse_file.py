"""Sparse files, read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookline.deploy.inference.container import MAX_RANK, REMEDY, SPARSE, DamagedError, expand_json, read_container
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
FLOATS, CODEBOOK = "float32", "codebook"
"""Values: as they are; or as indices into a few shared values."""
ROWS, COLUMNS = "rows", "columns"
"""Orders: as the array lies in memory; or each output channel (last axis) separately."""
FIELDS = ("name", "shape", "order", "positions", "kept", "values")
GAP_FIELDS = ("gap_bits", "gaps")

Parts = Mapping[str, np.ndarray]
"""Arrays of the file that belong to one weight, by what they hold: "bitmap", "gaps" and "gaps_code" (lengths of a
Huffman code; without them all numbers have one width), "values", or "codebook", "indices" and "indices_code"."""


@dataclass(frozen=True)
class SparseWeight:
    """Describe how an array is stored.

    Attributes:
        name: of the weight.
        shape: of the dense array.
        order: ROWS or COLUMNS: in which its entries are counted.
        positions: ALL, BITMAP or GAPS.
        kept: entries that are stored. The others are 0.
        values: FLOATS or CODEBOOK.
        gap_bits: of GAPS: bits of a number.
        gaps: of GAPS: how many numbers there are, fillers included.
    """

    name: str
    shape: tuple[int, ...]
    order: str
    positions: str
    kept: int
    values: str
    gap_bits: int = 0
    gaps: int = 0

    @property
    def size(self) -> int:
        """Return the number of entries of the dense array."""
        return math.prod(self.shape)

    def as_json(self) -> dict[str, Any]:
        """Return the description as JSON values."""
        fields = (*FIELDS, *(GAP_FIELDS if self.positions == GAPS else ()))
        return {name: list(self.shape) if name == "shape" else getattr(self, name) for name in fields}


def from_json(value: Any) -> SparseWeight:
    """Return the description that JSON values hold."""
    fields = {*FIELDS, *(GAP_FIELDS if isinstance(value, dict) and value.get("positions") == GAPS else ())}
    if not isinstance(value, dict) or set(value) != fields or not isinstance(value["name"], str):
        raise DamagedError("a weight is described by other fields than those that are written.")
    name, shape = value["name"], value["shape"]
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(_is_count(each) for each in shape):
        raise DamagedError(f"weight {name[:40]!r} has no valid shape.")
    weight = SparseWeight(**{**value, "shape": tuple(shape)})
    for field, known in (
        ("order", (ROWS, COLUMNS)),
        ("positions", (ALL, BITMAP, GAPS)),
        ("values", (FLOATS, CODEBOOK)),
    ):
        if value[field] not in known:
            raise DamagedError(
                f"weight {name[:40]!r} has {field}={value[field]!r:.40}, expected one of {', '.join(known)}."
            )
    _check_counts(weight)
    return weight


def _check_counts(weight: SparseWeight) -> None:
    counts = (weight.kept, weight.gap_bits, weight.gaps)
    if not all(_is_count(each) for each in counts):
        raise DamagedError(f"weight {weight.name[:40]!r} has a count that is not a whole number of at least 0.")
    stored = weight.kept == weight.size if weight.positions == ALL else weight.kept <= weight.size
    stored = stored and (weight.order == ROWS or (len(weight.shape) > 1 and weight.size > 0))
    if not stored or weight.gaps > weight.size or (weight.positions == GAPS and not 1 <= weight.gap_bits <= MAX_BITS):
        raise DamagedError(f"weight {weight.name[:40]!r} has counts that do not fit its shape.")


def to_dense(weight: SparseWeight, parts: Parts) -> np.ndarray:
    """Return the dense array."""
    left = dict(parts)
    places = _read_places(weight, left)
    values = _read_values(weight, left)
    if left:
        raise DamagedError(f"weight {weight.name[:40]!r} has an array {next(iter(left))[:20]!r} too many.")
    if places is None:
        flat = values
    else:
        if not values.view(np.uint32).all():
            raise DamagedError(f"weight {weight.name[:40]!r} stores a 0 among the entries that are not.")
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
        return from_gaps(
            _read_symbols(parts, GAPS, weight.gap_bits, weight.gaps), weight.gap_bits, weight.kept, weight.size
        )
    bitmap = _take(parts, BITMAP)
    check_end(bitmap, weight.size)
    places = np.flatnonzero(np.unpackbits(bitmap)[: weight.size])
    if len(places) != weight.kept:
        raise DamagedError(f"a bitmap has {len(places):,} entries, expected {weight.kept:,}.")
    return places


def _read_values(weight: SparseWeight, parts: dict[str, np.ndarray]) -> np.ndarray:
    if weight.values == FLOATS:
        values = _take(parts, "values", np.float32)
        if len(values) != weight.kept:
            raise DamagedError(f"weight {weight.name[:40]!r} has {len(values):,} values, expected {weight.kept:,}.")
        return values.copy()
    book = _take(parts, "codebook", np.float32)
    if not 1 <= len(book) <= MAX_SYMBOLS:
        raise DamagedError(f"a codebook has {len(book):,} values, expected 1 to {MAX_SYMBOLS}.")
    indices = _read_symbols(parts, "indices", (len(book) - 1).bit_length(), weight.kept)
    if len(indices) and indices.max() >= len(book):
        raise DamagedError(f"an index of {indices.max()} points behind a codebook of {len(book)} values.")
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
        raise DamagedError(f"it has no flat array of {np.dtype(dtype).name} {name!r} where one is expected.")
    return array


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


NETWORK = "network"
"""The array with the config of the Keras model: most of what such a file would have to say uncompressed."""
KEYS = {"weights"}
OPTIONAL = {"about"}
LEAST, TIMES = 2**26, 2**12
"""Memory that a file may claim whatever its size, and how many times its size it may claim beyond that."""


def read_sparse(path: Path) -> dict[str, np.ndarray]:
    """Return the weights of a sparse file."""
    return read_sparse_network(path)[1]


def read_sparse_network(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the config of the Keras model in a sparse file, and its weights."""
    path = Path(path)
    model, tensors = read_container(path, SPARSE)
    try:
        if not KEYS <= set(model) <= KEYS | OPTIONAL or NETWORK not in tensors:
            raise DamagedError("its description of the model says more or less than network and weights.")
        if not isinstance(model.get("about", {}), dict):
            raise DamagedError("what it says about the network is not a mapping.")
        network = expand_json(tensors[NETWORK], NETWORK)
        if not isinstance(network, dict):
            raise DamagedError("its network is not a mapping.")
        weights = _describe(model["weights"])
        _check_memory(weights, path.stat().st_size)
        return network, _decode(weights, {name: each for name, each in tensors.items() if name != NETWORK})
    except DamagedError as error:
        raise UserError(f"{path} is not a valid sparse file: {error} {REMEDY}") from error
    except (MemoryError, OSError) as error:
        reason = getattr(error, "strerror", "") or "it is too large for the memory"
        raise UserError(f"{path} cannot be read: {reason}. Expected a sparse file.") from error


def tensor_name(index: int, part: str) -> str:
    """Return the name of an array in the file."""
    return f"{index}.{part}"


def _describe(values: Any) -> list[SparseWeight]:
    if not isinstance(values, list):
        raise DamagedError("its weights are not a list.")
    weights = [from_json(value) for value in values]
    if len({weight.name for weight in weights}) < len(weights):
        raise DamagedError("two of its weights have one name.")
    return weights


def _check_memory(weights: list[SparseWeight], file_bytes: int) -> None:
    claimed, most = 4 * sum(weight.size for weight in weights), max(LEAST, TIMES * file_bytes)
    if claimed > most:
        raise DamagedError(f"its {file_bytes:,} bytes claim {claimed:,} of memory, more than {most:,}.")


def _decode(weights: list[SparseWeight], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    parts: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, tensor in tensors.items():
        index, _, part = name.partition(".")
        parts[index][part] = tensor
    dense = {weight.name: to_dense(weight, parts.pop(str(index), {})) for index, weight in enumerate(weights)}
    if parts:
        raise DamagedError(f"array '{next(iter(parts))[:40]}...' belongs to no weight.")
    return dense
