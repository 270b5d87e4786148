"""What each weight takes after each stage of Deep Compression: pruned, with shared values, with Huffman codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.export.contents import Contents
from trainer.export.sparse_weight import Stored, store
from trainer.inference.sparse_weight import CODEBOOK, GAPS

COLUMNS = (
    "weight",
    "entries",
    "kept",
    "bits",
    "positions",
    "dense",
    "sparse",
    "shared",
    "huffman",
    "bits/kept",
    "times",
)


@dataclass(frozen=True)
class Stages:
    """Hold what a weight takes in the end, and the bytes of its data after each stage of Deep Compression.

    Attributes:
        stored: as it is in the file.
        kept: entries that are not 0.
        dense: bytes as float32.
        sparse: bytes of positions and float32 values.
        shared: bytes of positions, and of values through a codebook where that takes less.
    """

    stored: Stored
    kept: int
    dense: int
    sparse: int
    shared: int

    @property
    def entries(self) -> int:
        """Return the number of entries."""
        return self.stored.weight.size

    @property
    def coded(self) -> int:
        """Return the bytes in the file, with Huffman codes where they take less."""
        return self.stored.data_bytes


def measure_stages(name: str, values: np.ndarray, given: np.ndarray, *, huffman: bool) -> Stages:
    """Store a weight, and count what it takes after each stage.

    Args:
        name: of the weight.
        values: float32, as the run has them.
        given: the same with shared values, as the file is to give them back.
        huffman: whether numbers may be stored under Huffman codes.
    """
    return Stages(
        store(name, given, huffman=huffman),
        kept=int(np.count_nonzero(given)),
        dense=values.nbytes,
        sparse=store(name, values, huffman=False, codebook=False).data_bytes,
        shared=store(name, given, huffman=False).data_bytes,
    )


def describe_stages(stages: Sequence[Stages], header: int, *, lossy: bool) -> Contents:
    """Return the table of stages, as those of the paper: a row for each weight, and their sum.

    Args:
        stages: of each weight.
        header: bytes of the file that are no data.
        lossy: whether values were rounded.
    """
    entries, kept, dense, sparse, shared, data = (
        sum(getattr(each, name) for each in stages)
        for name in ("entries", "kept", "dense", "sparse", "shared", "coded")
    )
    total = ("total", f"{entries:,}", f"{kept:,}", "", "", *_bytes(dense, sparse, shared, data, kept))
    note = f"data {data:,} bytes, header {header:,} bytes"
    if data:  # a network without weights has none
        note += (
            f": {dense / data:.1f} times smaller than the weights as float32 by data alone, "
            f"{dense / (data + header):.1f} times with the header"
        )
    return Contents(COLUMNS, (*(_row(each) for each in stages), total), (note,), lossy)


def _row(stages: Stages) -> tuple[str, ...]:
    weight, parts = stages.stored.weight, stages.stored.parts
    bits = f"{(len(parts['codebook']) - 1).bit_length()}" if weight.values == CODEBOOK else "32"
    form = f"{weight.gap_bits}-bit {GAPS}" if weight.positions == GAPS else weight.positions
    numbers = _bytes(stages.dense, stages.sparse, stages.shared, stages.coded, stages.kept)
    return (weight.name, f"{stages.entries:,}", f"{stages.kept:,}", bits, form, *numbers)


def _bytes(dense: int, sparse: int, shared: int, coded: int, kept: int) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (dense, sparse, shared, coded))
    return (*counts, f"{8 * coded / kept:.2f}" if kept else "", f"{dense / coded:.1f}" if coded else "")
