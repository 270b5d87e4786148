"""Integer thresholds: what stands between an integer sum and a sign, found by trying every integer that can occur."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Signs = Callable[[np.ndarray], np.ndarray]
"""Integers, int64 [count], to the sign that each channel gives them: bool [count, channels], True for +1."""

CHUNK = 2**22  # signs at a time


@dataclass(frozen=True)
class Thresholds:
    """Say for which integers each channel gives +1.

    Attributes:
        values: the t of each channel, [channels], in the smallest integer type that holds them.
        descending: bool [channels]; +1 where x <= t there, and where x >= t elsewhere.
    """

    values: np.ndarray
    descending: np.ndarray

    def __call__(self, integers: np.ndarray) -> np.ndarray:
        """Return bool [..., channels], True for +1.

        Args:
            integers: [..., channels].
        """
        wide = self.values.astype(np.int64)
        return np.where(self.descending, integers <= wide, integers >= wide)


def find_thresholds(signs: Signs, largest: int, channels: int) -> Thresholds | None:
    """Return thresholds that give the signs of every integer from -largest to largest, or None where there are none.

    None means that a channel changes its sign more than once. A channel that never changes it gets a threshold that
    every integer reaches, or none.

    Args:
        signs: computes them, the same for an integer in every call.
        largest: 1 or more.
        channels: how many there are.
    """
    step = max(1, CHUNK // channels)
    first = before = np.zeros(channels, bool)
    changes = place = np.zeros(channels, np.int64)
    for start in range(-largest, largest + 1, step):
        integers = np.arange(start, min(start + step, largest + 1))
        found = signs(integers)
        if start == -largest:
            first = before = found[0]
        changed = found != np.concatenate([before[None], found[:-1]])
        changes = changes + changed.sum(0)
        place = np.where(changed.any(0), integers[changed.argmax(0)], place)
        before = found[-1]
        if (changes > 1).any():
            return None
    descending = (changes == 1) & first
    never_changed = np.where(first, -largest, largest + 1)
    # `place` is the first integer with the other sign: descending ones give +1 up to the one before it.
    values = np.where(changes == 0, never_changed, place - descending)
    return Thresholds(values.astype(_smallest_type(values)), descending)


def _smallest_type(values: np.ndarray) -> type[np.signedinteger]:
    for dtype in (np.int8, np.int16):
        limits = np.iinfo(dtype)
        if limits.min <= values.min() and values.max() <= limits.max:
            return dtype
    return np.int32
