"""Read the dense arrays of a sparse file: NumPy is all that it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import UserError
from trainer.inference.compressed_json import expand_json
from trainer.inference.container import REMEDY, SPARSE, DamagedError, read_container
from trainer.inference.sparse_weight import SparseWeight, from_json, to_dense

NETWORK = "network"
"""The array with the config of the Keras model: most of what such a file would have to say uncompressed."""
KEYS = {"weights"}
OPTIONAL = {"about"}
LEAST, TIMES = 2**26, 2**12
"""Bytes that a file may claim whatever its size is, and how many times its size it may claim: what memory it takes."""


def read_sparse(path: Path) -> dict[str, np.ndarray]:
    """Return the weights of a sparse file.

    Args:
        path: of the file.

    Returns:
        float32 arrays by name: bit for bit those that were written.

    Raises:
        UserError: it cannot be read, or is not what was written.
    """
    return read_sparse_network(path)[1]


def read_sparse_network(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the config of the Keras model in a sparse file, and its weights.

    Args:
        path: of the file.

    Raises:
        UserError: it cannot be read, or is not what was written.
    """
    path = Path(path)
    model, tensors = read_container(path, SPARSE)
    try:
        if not KEYS <= set(model) <= KEYS | OPTIONAL or NETWORK not in tensors:
            raise DamagedError("its description of the model says more or less than network and weights.")
        if not isinstance(model.get("about", {}), dict):
            raise DamagedError("what it tells about the network is no mapping.")
        network = expand_json(tensors[NETWORK], NETWORK)
        if not isinstance(network, dict):
            raise DamagedError("its network is no mapping.")
        weights = _describe(model["weights"])
        _check_memory(weights, path.stat().st_size)
        return network, _decode(weights, {name: each for name, each in tensors.items() if name != NETWORK})
    except DamagedError as error:
        raise UserError(f"{path} is no valid sparse file: {error} {REMEDY}") from error
    except (MemoryError, OSError) as error:
        reason = getattr(error, "strerror", "") or "it is too large for the memory"
        raise UserError(f"{path} cannot be read: {reason}. Expected a sparse file.") from error


def tensor_name(index: int, part: str) -> str:
    """Return the name of an array in the file.

    Args:
        index: of its weight in the list of weights.
        part: what it holds, such as "indices".
    """
    return f"{index}.{part}"


def _describe(values: Any) -> list[SparseWeight]:
    if not isinstance(values, list):
        raise DamagedError("its weights are no list.")
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
