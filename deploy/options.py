"""Options of exports."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, fields
from typing import Any

from hookline.trainer.errors import UserError


@dataclass(frozen=True)
class Contents:
    """Describe what was written.

    Attributes:
        columns: heads of a table; the first column stands on the left, the others on the right.
        rows: of the table, a text for each column.
        notes: lines below the table.
        lossy: whether the file holds rounded values, so that its metrics may differ from the run's by more than the
            order of additions.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    lossy: bool = False


def first_line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def import_optional(module: str, *, extra: str, needed_by: str) -> Any:
    """Return a module of a package that this project installs on demand."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{needed_by} needs the package {module}, which cannot be imported. Expected it installed: python -m pip "
            f"install '.[{extra}]', in a clone of this project."
        ) from error


EXPECTED = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}


@dataclass
class ExportOptions:
    """Hold the options; each format names those that it takes.

    Attributes:
        tolerance: how far a metric on the test split may be from the run's; None for the default of the file's form:
            0.001 if it holds the weights as they are, 0.02 if it quantizes them.
        int8: of format=litert: whether weights and activations are rounded to 8 bits after training.
        float16: of format=packed: whether kernels and biases that take more than 8 bits are rounded to 16.
        codebook: of format=sparse: bits of an index into the values that the entries of a dense kernel share, 1 to 8,
            such as 5; None keeps every value.
        codebook_conv: the same for kernels of convolutions; None for 8 where `codebook` is given.
        huffman: of format=sparse: whether indices and gaps are stored under Huffman codes where that is smaller.
    """

    tolerance: float | None = None
    int8: bool = False
    float16: bool = False
    codebook: int | None = None
    codebook_conv: int | None = None
    huffman: bool = True

    def __post_init__(self) -> None:
        """Check each value against the type of its field."""
        for each in fields(ExportOptions):
            kinds = [kind.strip() for kind in str(each.type).split("|")]
            value = getattr(self, each.name)
            if not any(_is(value, kind) for kind in kinds):
                expected = " or ".join(EXPECTED[kind] for kind in kinds if kind in EXPECTED)
                raise UserError(f"Invalid {each.name}: {value!r}. Expected {expected}.")
        if self.tolerance is not None and not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise UserError(f"Invalid tolerance: {self.tolerance!r}. Expected a number from 0 on, such as 0.02.")

    @property
    def changed(self) -> list[str]:
        """Return the names of the options that are not at their defaults."""
        return [each.name for each in fields(ExportOptions) if getattr(self, each.name) != each.default]


def _is(value: Any, kind: str) -> bool:
    if kind == "None":
        return value is None
    if isinstance(value, bool):
        return kind == "bool"
    if kind == "float":
        return isinstance(value, int | float)
    return type(value).__name__ == kind
