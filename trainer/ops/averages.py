"""Rounding of averages in integer runtimes: halves round away from the real value that int8 0 represents."""

from __future__ import annotations

from typing import Any

STRETCH = 2e-4
"""Relative stretch of averages about that value: above the float32 error, but too small to move anything but halves."""
STRETCHED = "_stretched"
"""Name suffix of a layer that stretches averages; integer runtimes do not need that layer."""


def middle(low: Any, high: Any, bits: int) -> Any:
    """Return the real value of integer 0 in a range [low, high] with 2^bits levels, which is level 2^(bits - 1)."""
    return low + (high - low) * (2.0 ** (bits - 1) / (2.0**bits - 1.0))
