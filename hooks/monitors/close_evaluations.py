"""How much of the choice of the best step is chance: evaluations that a small split cannot tell apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hooks.advice.monitor import loss_monitor
from trainer.run.results import is_share_of, short_name

FEW = 2
"""So many other evaluations as good as the best one make its choice chance."""
SMALL = 0.005
"""Differences below it matter to nobody."""


def describe_close(monitor: str, values: Sequence[float], best: float, examples: int) -> str | None:
    """Return a line on evaluations that lie within a standard error, or two examples, of the best.

    Args:
        monitor: name of the metric that decides.
        values: of every evaluation that counted, the best one included.
        best: the best of them.
        examples: of the split, 1 or more.

    Returns:
        None where the metric is no share of the examples, the split is large enough, or the best stands out.
    """
    if not all(is_share_of(value, examples) for value in (*values, best)):
        return None
    share = (best * examples + 1) / (examples + 2)  # that of all right has an error, too
    error = math.sqrt(share * (1.0 - share) / examples)
    margin = max(error, 2.0 / examples)
    close = sum(abs(value - best) <= margin + 1e-9 for value in values) - 1
    if close < FEW or margin < SMALL:
        return None
    return (
        f"{examples} examples: one is {1 / examples:.2g} of {short_name(monitor)}, its standard error {error:.2g}, and "
        f"{close} other evaluations lie as near to the best. Which step is the best is chance: let a loss decide, "
        f"{loss_monitor(monitor)}, or hold out more."
    )
