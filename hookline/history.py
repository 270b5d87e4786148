"""What `fit` returns: the values of every epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, repr=False)
class History:
    """Hold a value an epoch of each loss and metric, as `keras.callbacks.History` does.

    Attributes:
        history: values by name: "loss", "accuracy", "val_loss", "val_accuracy".
        epoch: which epochs of the trainer these are, from 0 on.
        summary: what summary.json of a run says: "digest", "steps", "status", "hooks" and more.
    """

    history: dict[str, list[float]] = field(default_factory=dict)
    epoch: list[int] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the first and the last value of each loss and metric."""
        spans = [f"{name} {_short(each[0])} -> {_short(each[-1])}" for name, each in self.history.items() if each]
        count = f"{len(self.epoch)} epoch{'' if len(self.epoch) == 1 else 's'}"
        return f"History({count}: {', '.join(spans)})" if spans else f"History({count})"


def _short(value: float) -> str:
    return f"{value:.4g}"
