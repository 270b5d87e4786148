"""Processes that read examples, for classes that compute in Python: threads would wait for each other.

A batch asks for rows and the processes share them, so its bits are those of threads at any step: nothing runs ahead,
and there is no order to save. A process imports the user's module and NumPy, no TensorFlow.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from hookline.trainer.errors import UserError

INPUTS, TARGETS = "inputs", "targets"
_own: list[Any] = []
"""The object that this process reads, if it is a worker."""


class InProcesses:
    """Give rows of an object that several processes read, each from a copy: `gather(rows)` in place of `[row]`."""

    def __init__(self, examples: Any, workers: int, name: str) -> None:
        """Start the processes, which stay until Python ends."""
        self._examples, self._workers, self._name = examples, workers, name
        try:
            pickle.dumps(examples)
        except Exception as error:
            raise UserError(
                f"data.workers={workers} needs a copy of {name} in each process, and it cannot be copied: {error}. "
                "Open files and connections at the first row that is read, or set data.workers=0."
            ) from error
        context = multiprocessing.get_context("spawn")  # a fork would copy TensorFlow's threads in the middle of work
        self._pool = ProcessPoolExecutor(workers, context, _begin, (examples,))

    def __len__(self) -> int:
        return len(self._examples)

    def __getattr__(self, name: str) -> Any:
        """Return what the object has besides, such as `labels`."""
        return getattr(self._examples, name)

    def gather(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the rows as arrays [n, ...] by name, in their order."""
        shares = np.array_split(rows, min(self._workers, len(rows)))
        try:
            tasks = [self._pool.submit(_read, share) for share in shares]
            parts = [task.result() for task in tasks]
        except BrokenProcessPool as error:
            raise UserError(
                f"A process of data.workers={self._workers} has ended: it ran out of memory, or its module cannot be "
                "imported. A script of your own needs `if __name__ == '__main__':` before what it runs."
            ) from error
        _check_alike([(int(share[0]), part) for share, part in zip(shares, parts, strict=True)])
        return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def _begin(examples: Any) -> None:
    _own.append(examples)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides what an interruption means
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    run = multiprocessing.parent_process()
    assert run is not None
    wait([run.sentinel])
    os._exit(1)


def _read(rows: np.ndarray) -> dict[str, np.ndarray]:
    try:
        if callable(getattr(_own[0], "gather", None)):
            return {name: np.asarray(each) for name, each in _named(_own[0].gather(rows)).items()}
        found = [(row, {name: np.array(each) for name, each in _named(_own[0][row]).items()}) for row in rows.tolist()]
    except Exception as error:  # noqa: BLE001 - its traceback does not leave this process
        place = traceback.extract_tb(sys.exc_info()[2])[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        raise UserError(f"{type(error).__name__}: {error} ({where}). Fix the class that gives it.") from None
    _check_alike(found, batched=False)
    return {name: np.stack([each[name] for _, each in found]) for name in found[0][1]}


def _named(given: Any) -> Mapping[str, Any]:
    if isinstance(given, tuple | list) and len(given) == 2:
        return {INPUTS: given[0], TARGETS: given[1]}
    if isinstance(given, Mapping):
        return given
    raise UserError(f"received {type(given).__name__}; expected inputs and target, or a mapping with them")


def _check_alike(found: Sequence[tuple[int, Mapping[str, np.ndarray]]], *, batched: bool = True) -> None:
    """Refuse examples, or parts of a batch, that differ in names, dtypes or shapes."""
    forms = [{name: f"{each.dtype} {list(each.shape[batched:])}" for name, each in one.items()} for _, one in found]
    for (row, _), form in zip(found, forms, strict=True):
        if form != forms[0]:
            raise UserError(f"row {row}: {form}; expected {forms[0]}, as in row {found[0][0]}. Give all one form.")
