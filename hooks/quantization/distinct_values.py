"""How many values the entries of a kernel have: what its bits must tell apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def most_values(values: np.ndarray, channel_axes: Sequence[int] = ()) -> int:
    """Return how many different values an array has or, by channel, the channel that has most of them.

    Args:
        values: of any shape and float dtype.
        channel_axes: axes that tell channels apart; none to count over the whole array.
    """
    channels = [axis % values.ndim for axis in channel_axes]
    count = int(np.prod([values.shape[axis] for axis in channels], dtype=int))
    rows = np.moveaxis(values.astype(np.float64), channels, range(len(channels))).reshape(count, -1)
    return max(len(np.unique(row)) for row in rows)
