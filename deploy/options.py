"""Options of exports."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, fields
from typing import Any

from hookline.trainer.errors import UserError


@dataclass(frozen=True)
class Contents:
    """Describe what was written."""

    columns: tuple[str, ...]  # heads of a table; the first column is aligned left, the others right
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # lines below the table
    lossy: bool = False  # whether the file holds rounded values, so that its metrics may differ more from the run's


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def import_optional(module: str, *, extra: str, needed_by: str) -> Any:
    """Return a module of a package that this project installs on demand."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{needed_by} needs the package {module}, which cannot be imported. Expected it installed: python -m pip "
            f"install -e '.[{extra}]', in a clone of this project."
        ) from error


MOST_BITS = 8


@dataclass
class ExportOptions:
    """Hold the options; each format names those that it takes.

    Attributes:
        tolerance: how far a metric on the test split may be from the run's; None for 0.001, or 0.02 if the file holds
            rounded weights.
        int8: of format=litert: whether weights and activations are rounded to 8 bits after training.
        float16: of format=packed: whether kernels and biases that take more than 8 bits are rounded to 16.
        codebook: of format=sparse: bits of an index into the values that the entries of a dense kernel share, 1 to 8,
            such as 5; None keeps every value.
        codebook_conv: the same for kernels of convolutions; None for 8 if `codebook` is set.
        huffman: of format=sparse: whether indices and gaps are stored under Huffman codes where that is smaller.
    """

    tolerance: float | None = None
    int8: bool = False
    float16: bool = False
    codebook: int | None = None
    codebook_conv: int | None = None
    huffman: bool = True

    def __post_init__(self) -> None:
        for name in ("int8", "float16", "huffman"):
            self._check(name, isinstance(getattr(self, name), bool), "true or false")
        for name in ("codebook", "codebook_conv"):
            bits = getattr(self, name)
            is_known = bits is None or (type(bits) is int and 1 <= bits <= MOST_BITS)
            self._check(name, is_known, f"1 to {MOST_BITS} bits, such as 5, or null")
        is_known = self.tolerance is None or (type(self.tolerance) in (int, float) and 0 <= self.tolerance < math.inf)
        self._check("tolerance", is_known, "a number of at least 0, such as 0.02")
        if self.codebook is None and self.codebook_conv is not None:
            raise UserError(
                f"codebook_conv={self.codebook_conv} received without codebook. Expected both, such as codebook=5."
            )

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise UserError(f"Invalid {name}: {getattr(self, name)!r}. Expected {expected}.")

    @property
    def changed(self) -> list[str]:
        """Return the names of the options that are not at their defaults."""
        return [each.name for each in fields(ExportOptions) if getattr(self, each.name) != each.default]
