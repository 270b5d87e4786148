"""A contender: one way to do some work, timed against other ways to do the same.

The virtual environments of other frameworks import this module too, so it needs the standard library alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

MODULES = ("inputs", "inference", "training")
"""Modules beside this one that hold `CONTENDERS`."""


@dataclass(frozen=True)
class Settings:
    """What the command line gives to every contender."""

    data: str = ""  # path of the data; empty for what is embedded or generated
    batch_size: int = 128
    threads: int | None = None  # of the framework; None for as many as there are cores


Work = Callable[[int], float | None]
"""work(count) does so many units of work, and returns the seconds that count; None for all that passed.

Its attribute `products`, if it has one: the multiply-accumulates of one example, forward and backward.
"""


@dataclass(frozen=True)
class Contender:
    """One way to do some work. Importing its module must be cheap: `prepare` runs in a process of its own."""

    what: str  # the comparison that it belongs to: `what=` of the command line
    case: str  # the work; contenders of one case do the same
    name: str  # unique in its case
    prepare: Callable[[Settings], Work]  # may raise a `UserError`
    baseline: bool = False  # whether others are compared with it; of several in a case, with the fastest
    limit: bool = False  # whether it does only a part of the work, and so bounds the speed of the others
    unit: str = "batches"
    batch_size: int = 128  # unless the command line says otherwise
    environment: str = ""  # the virtual environment that its framework needs; empty for ours
    imports: str = "tensorflow"  # imported before anything else, in our environment; empty for none
    threads: int | None = None  # unless the command line says otherwise; None for as many as there are cores

    @property
    def key(self) -> str:
        """Return its identity among all contenders."""
        return f"{self.what}/{self.case}/{self.name}"


def find_contenders() -> list[Contender]:
    """Return the contenders of all modules, in their order."""
    modules = [importlib.import_module(f"hookline.scripts.benchmarks.{name}") for name in MODULES]
    return [each for module in modules for each in module.CONTENDERS]
