"""A contender: one way to do some work, to be timed against other ways to do the same.

What runs in the virtual environment of another framework sees this module, too: it imports nothing but Python's own.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BATCHES, STEPS = "batches", "steps"
"""Units of work: batches that are made or predicted, and steps that are trained."""
TENSORFLOW = "tensorflow"


@dataclass(frozen=True)
class Settings:
    """Hold what the command line gives to every contender.

    Attributes:
        data: path of the data; empty for what is embedded or generated.
        batch_size: examples a batch.
        threads: of the framework; None for as many as there are cores.
    """

    data: str = ""
    batch_size: int = 128
    threads: int | None = None


@dataclass(frozen=True)
class Done:
    """Describe finished work.

    Attributes:
        seconds: that count, where the work has a beginning that a long run has once; None for all of them.
        loss: mean of the training loss over the steps; None if nothing is trained.
    """

    seconds: float | None = None
    loss: float | None = None


Work = Callable[[int], Done | None]
"""Called as work(count): does that many units of work, and returns when they are done.

Its attribute `facts`, where it has one, is a dict of JSON values that were found while it was prepared: "note", a word
on how it works; "products", multiplications with an addition that one example takes, forward and backward; "peak",
operations a second in large products of matrices.
"""


@dataclass(frozen=True)
class Contender:
    """Name one way to do some work. Importing its module must be cheap: `prepare` runs in a process of its own.

    Attributes:
        what: the comparison that it belongs to, such as "input"; `what=` of the command line.
        case: the work; contenders of one case do the same.
        name: of the way, unique in its case.
        prepare: opens the data and sets up; returns the work. It may raise a `UserError`.
        baseline: whether the others of its case are compared with it. Of several in a case, the fastest counts.
        limit: whether it does a part of the work only, and so says how fast the work can be at best.
        unit: of the work: "batches" or "steps".
        batch_size: examples a batch, where the command line does not say.
        loss_steps: steps after which the loss is noted: the mean over the second half of them; 0 for none.
        environment: name of the virtual environment that its framework needs; empty for ours.
        imports: module that its process imports before anything else, in our environment; empty for none.
        threads: of its framework, where the command line does not say; None for as many as there are cores.
    """

    what: str
    case: str
    name: str
    prepare: Callable[[Settings], Work]
    baseline: bool = False
    limit: bool = False
    unit: str = BATCHES
    batch_size: int = 128
    loss_steps: int = 0
    environment: str = ""
    imports: str = TENSORFLOW
    threads: int | None = None

    @property
    def key(self) -> str:
        """Return its identity among all contenders."""
        return f"{self.what}/{self.case}/{self.name}"


def find_contenders() -> list[Contender]:
    """Return the contenders of all modules beside this one, in their order."""
    found: list[Contender] = []
    for module in sorted(each.name for each in pkgutil.iter_modules([str(Path(__file__).parent)])):
        found += getattr(importlib.import_module(f"hookline.scripts.benchmarks.{module}"), "CONTENDERS", ())
    return found
