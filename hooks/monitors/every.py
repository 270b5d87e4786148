"""When something is due: every few evaluations, or every so many steps."""

from __future__ import annotations

import math


def is_due(every: int, number: int, *, last: bool = False) -> bool:
    """Return whether an evaluation is an `every`-th one, the first included, or the last; never with 0.

    Args:
        every: evaluations from one to the next; 0 for none.
        number: of the evaluation, from 0.
        last: whether it is the last one, which is due as well.
    """
    return bool(every) and (last or number % every == 0)


def due_after(step: int, distance: float) -> int:
    """Return the smallest step after `step` that completes a multiple of `distance`.

    Args:
        step: steps made so far.
        distance: steps between two multiples, perhaps a fraction; above 0.
    """
    multiple = math.floor(step / distance + 1e-9) + 1
    due = math.ceil(multiple * distance - 1e-9)
    while due <= step:
        multiple += 1
        due = math.ceil(multiple * distance - 1e-9)
    return due
