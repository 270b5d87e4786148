"""One operation of a network on its way from Keras to a packed file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.inference.graph import Op

Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Node:
    """Hold an operation, its arrays as they are, and what computes it in Keras.

    Attributes:
        op: it, without the arrays that become part of the file.
        arrays: float32 by field: "kernel", "bias", "scale", "shift".
        call: computes it from its only input, as the evaluation does, where it treats every channel apart; else None.
    """

    op: Op
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    call: Call | None = None

    @property
    def kind(self) -> str:
        """Return which operation it is."""
        return self.op.op


def consumers(nodes: Sequence[Node], output: str) -> dict[str, int]:
    """Return how often each value is used, by name.

    Args:
        nodes: of a network.
        output: the value that is its output, which counts once.
    """
    counts = {output: 1}
    for node in nodes:
        for name in node.op.inputs:
            counts[name] = counts.get(name, 0) + 1
    return counts
