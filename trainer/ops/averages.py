"""How integer runtimes round averages: halves away from the value of int8 0."""

from __future__ import annotations

from typing import Any

STRETCH = 2e-4
"""How much averages are stretched around that value: more than the error of float32, too little to move but halves."""
STRETCHED = "_stretched"
"""Suffix of the name of a layer that does so; an integer runtime does not need it."""


def middle(low: Any, high: Any, bits: int) -> Any:
    """Return the value of integer 0 of a range with 2^bits levels: that of level 2^(bits - 1)."""
    return low + (high - low) * (2.0 ** (bits - 1) / (2.0**bits - 1.0))
