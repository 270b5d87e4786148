"""From epochs, in which options are given, to steps, in which training counts."""

from __future__ import annotations

import math


def epoch_start(epoch: float, steps_per_epoch: float) -> int:
    """Return the first step before which so many epochs have been drawn.

    Args:
        epoch: 0 or more.
        steps_per_epoch: perhaps a fraction.
    """
    return math.ceil(epoch * steps_per_epoch - 1e-6)  # 0.1 * 3 is a little more than 0.3
