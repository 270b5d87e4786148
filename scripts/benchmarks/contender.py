"""A contender: one way to do some work, to be timed against other ways to do the same."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Hold what the command line gives to every contender.

    Attributes:
        data: path of the data; empty for what is embedded.
        batch_size: examples a batch.
        threads: of TensorFlow; None for as many as there are cores.
    """

    data: str = ""
    batch_size: int = 128
    threads: int | None = None


Work = Callable[[int], None]
"""Called as work(count): does that many units of work, and returns when they are done."""


@dataclass(frozen=True)
class Contender:
    """Name one way to do some work. Importing its module must be cheap: `prepare` runs in a process of its own.

    Attributes:
        what: the comparison that it belongs to, such as "input"; `what=` of the command line.
        case: the work; contenders of one case do the same.
        name: of the way, unique in its case.
        prepare: opens the data and sets up; returns the work. It may raise a `UserError`.
        baseline: whether the others of its case are compared with it; exactly one in each.
        unit: of the work, such as "batches".
    """

    what: str
    case: str
    name: str
    prepare: Callable[[Settings], Work]
    baseline: bool = False
    unit: str = "batches"

    @property
    def key(self) -> str:
        """Return what tells it from all others."""
        return f"{self.what}/{self.case}/{self.name}"


def find_contenders() -> list[Contender]:
    """Return the contenders of all modules beside this one, in their order."""
    found: list[Contender] = []
    for module in sorted(each.name for each in pkgutil.iter_modules([str(Path(__file__).parent)])):
        found += getattr(importlib.import_module(f"scripts.benchmarks.{module}"), "CONTENDERS", ())
    return found
