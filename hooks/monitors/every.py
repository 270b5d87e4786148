"""When something is due: every few evaluations, or every so many steps."""

from __future__ import annotations

import itertools
import math


def is_due(every: int, number: int, *, last: bool = False) -> bool:
    """Return whether an evaluation, from number 0, is an `every`-th one or the last; never with 0."""
    return bool(every) and (last or number % every == 0)


def due_after(step: int, distance: float) -> int:
    """Return the smallest step after `step` that completes a multiple of `distance`, which may be a fraction."""
    first = math.floor(step / distance + 1e-9) + 1
    dues = (math.ceil(multiple * distance - 1e-9) for multiple in itertools.count(first))
    return next(due for due in dues if due > step)
