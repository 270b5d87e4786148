"""A contender: one way to do some work, to be timed against other ways to do the same.

What runs in the virtual environment of another framework sees this module, too: it imports nothing but Python's own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

MODULES = ("array_input", "image_input", "inference", "training")
"""Modules beside this one that hold `CONTENDERS`."""
BATCHES, STEPS = "batches", "steps"
"""Units of work: batches that are made or predicted, and steps that are trained."""
TENSORFLOW = "tensorflow"


@dataclass(frozen=True)
class Settings:
    """Hold what the command line gives to every contender."""

    data: str = ""  # path of the data; empty for what is embedded or generated
    batch_size: int = 128
    threads: int | None = None  # of the framework; None for as many as there are cores


@dataclass(frozen=True)
class Done:
    """Describe finished work."""

    seconds: float | None = None  # that count, where the work has a beginning that a long run has once; None for all
    loss: float | None = None  # mean of the training loss over the steps; None if nothing is trained


Work = Callable[[int], Done | None]
"""Called as work(count): does that many units of work, and returns when they are done.

Its attribute `facts`, where it has one, is a dict of JSON values that were found while it was prepared: "note", a word
on how it works; "products", multiplications with an addition that one example takes, forward and backward; "peak",
operations a second in large products of matrices.
"""


@dataclass(frozen=True)
class Contender:
    """Name one way to do some work. Importing its module must be cheap: `prepare` runs in a process of its own."""

    what: str  # the comparison that it belongs to: `what=` of the command line
    case: str  # the work; contenders of one case do the same
    name: str  # unique in its case
    prepare: Callable[[Settings], Work]  # opens the data and sets up; may raise a `UserError`
    baseline: bool = False  # whether others are compared with it; of several in a case, with the fastest
    limit: bool = False  # whether it does a part of the work only, and so says how fast the work can be at best
    unit: str = BATCHES
    batch_size: int = 128  # where the command line does not say
    loss_steps: int = 0  # steps after which the loss is noted: the mean over the second half of them; 0 for none
    environment: str = ""  # name of the virtual environment that its framework needs; empty for ours
    imports: str = TENSORFLOW  # imported before anything else, in our environment; empty for none
    threads: int | None = None  # where the command line does not say; None for as many as there are cores

    @property
    def key(self) -> str:
        """Return its identity among all contenders."""
        return f"{self.what}/{self.case}/{self.name}"


def find_contenders() -> list[Contender]:
    """Return the contenders of all modules, in their order."""
    modules = [importlib.import_module(f"hookline.scripts.benchmarks.{name}") for name in MODULES]
    return [each for module in modules for each in module.CONTENDERS]
