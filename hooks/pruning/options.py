"""Checks of the options of pruning, and the structure that one of them names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookline.hooks.options import check_number
from hookline.trainer.errors import UserError, unknown_name

SIZED = {"n_m": "{n_m: [2, 4]}", "block": "{block: [4, 4]}"}
STRUCTURES = ("unstructured", "channel", *SIZED)

Sparsity = float | dict[str, float]


@dataclass(frozen=True)
class Structure:
    """Say which entries are kept or pruned together."""

    name: str  # "unstructured", "channel", "n_m" or "block"
    sizes: tuple[int, ...] = ()  # (n, m) of n_m: keep n of every m; (rows, columns) of a block; empty otherwise

    @property
    def own_sparsity(self) -> float | None:
        """Return the sparsity that the structure itself fixes, 1 - n / m, or None."""
        return 1.0 - self.sizes[0] / self.sizes[1] if self.name == "n_m" else None

    @property
    def config(self) -> str | dict[str, list[int]]:
        """Return the structure as a config gives it."""
        return {self.name: list(self.sizes)} if self.sizes else self.name


def parse_structure(value: Any) -> Structure:
    """Return the structure that a config names: a name, or such as {"n_m": [2, 4]}."""
    if isinstance(value, Mapping) and len(value) == 1:
        name, sizes = next(iter(value.items()))
    else:
        name, sizes = value, ()
    if not isinstance(name, str):
        raise UserError(f"Invalid structure: {value!r}. Expected unstructured, channel, {' or '.join(SIZED.values())}.")
    if name not in STRUCTURES:
        raise unknown_name("structure", name, STRUCTURES)
    if name not in SIZED:
        if isinstance(value, Mapping):
            raise UserError(f"Invalid structure: {value!r}. Expected structure={name}, without sizes.")
        return Structure(name)
    if not isinstance(sizes, Sequence) or len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise UserError(
            f"Invalid structure: {value!r}. Expected two whole numbers above 0, such as structure={SIZED[name]}."
        )
    if name == "n_m" and sizes[0] >= sizes[1]:
        raise UserError(f"Invalid structure: {value!r}. Expected to keep fewer than all: n < m, such as {SIZED[name]}.")
    return Structure(name, tuple(sizes))


def check_sparsity(name: str, value: Any) -> float:
    """Return a share of pruned entries in [0, 1], or raise a UserError."""
    expected = "the share of entries to prune, in [0, 1], such as 0.9"
    return check_number(name, value, minimum=0.0, maximum=1.0, expected=expected)


def check_layer_sparsity(name: str, value: Any) -> Sparsity:
    """Return one sparsity, or sparsities by layer pattern, or raise a UserError."""
    if not isinstance(value, Mapping):
        return check_sparsity(name, value)
    if not value or not all(isinstance(pattern, str) and pattern for pattern in value):
        raise UserError(f"Invalid {name}: {dict(value)!r}. Expected sparsities by layer pattern, such as {{fc1: 0.9}}.")
    return {pattern: check_sparsity(f"{name} of {pattern}", each) for pattern, each in value.items()}
