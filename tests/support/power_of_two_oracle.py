"""The equations of incremental quantization (arXiv 1702.03044) as they stand in the paper, one weight a time."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction


def paper_exponents(largest: float, bits: int) -> tuple[int, int]:
    """Return n1 and n2 by equations 1 and 2; the logarithm is found by comparing exact fractions."""
    ratio = Fraction(largest) * 4 / 3
    first = next(k for k in range(-140, 140) if Fraction(2) ** k <= ratio < Fraction(2) ** (k + 1))
    return first, first + 1 - 2 ** (bits - 1) // 2


def paper_rounding(weight: float, first: int, last: int) -> float:
    """Return the level b with (a + b) / 2 <= |w| < 3 b / 2, by equation 4; the largest level beyond all of them."""
    levels = [0.0, *(2.0**k for k in range(last, first + 1))]
    size = abs(weight)
    if size >= 1.5 * levels[-1]:
        return math.copysign(levels[-1], weight)
    for below, level in itertools.pairwise(levels):
        if (below + level) / 2 <= size < 1.5 * level:
            return math.copysign(level, weight)
    return 0.0
