"""Vectors of examples, with what is known of each, to look at in a projector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Embedding:
    """Hold the vectors of some examples.

    Attributes:
        vectors: float [examples, d].
        labels: what to write beside each example, by the name of the column: [examples] each.
        images: numbers [examples, height, width, 1 or 3] in any range, such as thumbnails; None for none.
    """

    vectors: np.ndarray
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    images: np.ndarray | None = None
