"""Files that stand in two splits under different names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np

from recipes.data.read_files import read_files


def find_copies(paths: Sequence[str], parts: Mapping[str, np.ndarray]) -> dict[int, int]:
    """Return the files that have the same content, byte for byte, as one of a later part.

    Only files of a size that occurs in two parts are read.

    Args:
        paths: files.
        parts: rows of `paths` by split, the ones to keep whole last, such as train, validation, test.

    Returns:
        The row of each copy, and the row in the last part that holds the same.

    Raises:
        UserError: a file that cannot be read.
    """
    ranks = np.full(len(paths), -1)
    for rank, rows in enumerate(parts.values()):
        ranks[rows] = rank
    sizes = read_files(paths, lambda file: os.fstat(file.fileno()).st_size)
    shared = _across(sizes, ranks)
    content: list[object] = [None] * len(paths)
    for row, digest in zip(shared, read_files([paths[row] for row in shared], _digest), strict=True):
        content[row] = digest
    last: dict[object, int] = {}
    copies = _across(content, ranks)
    for row in copies:
        if content[row] not in last or ranks[row] > ranks[last[content[row]]]:
            last[content[row]] = row
    return {row: last[content[row]] for row in copies if ranks[row] < ranks[last[content[row]]]}


def _across(values: Sequence[object], ranks: np.ndarray) -> list[int]:
    """Return the rows whose value occurs in two parts; None and rows of no part do not count."""
    seen: dict[object, set[int]] = {}
    for value, rank in zip(values, ranks.tolist(), strict=True):
        if value is not None and rank >= 0:
            seen.setdefault(value, set()).add(rank)
    return [row for row, value in enumerate(values) if ranks[row] >= 0 and len(seen.get(value, ())) > 1]


def _digest(file: BinaryIO) -> bytes:
    return hashlib.sha256(file.read()).digest()
