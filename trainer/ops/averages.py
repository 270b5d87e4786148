"""How integer runtimes round averages: halves away from the value that integer 0 of int8 stands for."""

from __future__ import annotations

from typing import Any

STRETCH = 2e-4
"""What averages are stretched by about that value: more than float32 is off, less than moves others than halves."""
STRETCHED = "_stretched"
"""End of the name of a layer that does so, which an integer runtime needs not."""


def middle(low: Any, high: Any, bits: int) -> Any:
    """Return the value of integer 0 of a range with 2^bits levels: that of level 2^(bits - 1)."""
    return low + (high - low) * (2.0 ** (bits - 1) / (2.0**bits - 1.0))
