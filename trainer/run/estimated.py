"""What a run says of itself and does not need: where that cannot be told, the run goes on without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def estimated(what: str, estimate: Callable[[], Value], otherwise: Value) -> Value:
    """Return what is estimated; where the estimate fails, warn in one line and return what stands in its place.

    Args:
        what: it is, as the line begins: "The plan".
        estimate: tells it.
        otherwise: what to return where it fails.
    """
    try:
        return estimate()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason to lose a run
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{what} cannot be told, and is left out ({reason}). Training is not affected.", stacklevel=2)
        return otherwise
