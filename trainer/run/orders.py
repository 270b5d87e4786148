"""The orders that the chief of several workers gives, and what a worker was asked from outside, as numbers."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum

from trainer.run.interruption import Interruption

OUT_OF_TIME = 1000
"""In the place of a signal's number: the wall-clock budget is over."""


class Kind(IntEnum):
    """Say what the chief orders."""

    RUN = 1  # train up to the step
    MOVE = 2  # be at the step
    TAKE = 3  # be at the step, with the chief's variables
    COMPARE = 4  # tell the digest of the variables
    LEAVE = 5  # the run is over: done
    INTERRUPTED = 6  # the run is over before its time
    FAILED = 7


@dataclass(frozen=True)
class Order:
    """Hold what the chief orders.

    Attributes:
        kind: what to do.
        step: see `Kind`.
        number: of the signal that ended the run, or `OUT_OF_TIME`; 0 for none.
        asked: for each worker what asks it to end, as `number`. Where any was asked, a chunk is not begun: the chief
            saves and ends the run.
    """

    kind: Kind
    step: int
    number: int
    asked: tuple[int, ...]


def ending(error: BaseException | None) -> Kind:
    """Return how the chief says that a run is over.

    Args:
        error: that ended it; None when all is done.
    """
    if error is None:
        return Kind.LEAVE
    return Kind.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Kind.FAILED


def asked_by(interruption: Interruption) -> int:
    """Return what asks this worker to end; 0 for nothing.

    Args:
        interruption: of this worker.
    """
    if interruption.signal_number is not None:
        return int(interruption.signal_number)
    return 0 if interruption.reason is None else OUT_OF_TIME


def number_of(error: BaseException | None) -> int:
    """Return the signal behind an error as workers tell it.

    Args:
        error: any.
    """
    if not isinstance(error, KeyboardInterrupt):
        return 0
    number = getattr(error, "signal_number", signal.SIGINT)
    return OUT_OF_TIME if number is None else int(number)


def signal_of(number: int) -> int | None:
    """Return the signal that a number stands for; None for none, as where time is over.

    Args:
        number: as workers tell it.
    """
    return None if number in (0, OUT_OF_TIME) else number
