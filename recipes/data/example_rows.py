"""Rows of a user's object, read by threads or by processes.

A batch asks for its rows and the workers share them. Nothing runs ahead, so a batch has the same bits at any step, and
there is no order to save. A process imports the user's module and NumPy, no TensorFlow.
"""

from __future__ import annotations

import multiprocessing
import operator
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hookline.trainer.errors import UserError

INPUTS, TARGETS = "inputs", "targets"
LARGEST_NUMBER = 8  # bytes: TensorFlow has no long double
TASKS_A_THREAD = 4
_own: list[Any] = []
"""The object that this process reads, if it is a worker."""

Formats: TypeAlias = "dict[str, tuple[np.dtype, tuple[int, ...]]]"
"""dtype and shape of one row, by name."""


class ExampleRows:
    """Rows of an object that has `__getitem__` or `gather`, all of the dtypes and shapes of row 0."""

    def __init__(self, examples: Any, name: str, *, threads: int, workers: int, alike: str) -> None:
        """Read row 0; with `workers` in processes, which stay until Python ends. `alike` says how to fix other rows."""
        self._name, self._alike, self._workers = name, alike, workers
        self._pool: Executor
        if workers:
            self._pool, self._tasks = _processes(examples, workers, name), workers
            self._read: Callable[..., dict[str, np.ndarray]] = _read_own
        else:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="examples")
            self._tasks = 1 if _is_batched(examples) else TASKS_A_THREAD * threads
            self._read = partial(read_rows, examples)
        self._formats: Formats = {}
        self.first = self.read(np.zeros([1], np.int64))
        self._formats = {key: (each.dtype, each.shape[1:]) for key, each in self.first.items()}

    def read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return rows as new arrays [n, ...] by name, in the order in which they are asked for."""
        shares = np.array_split(rows, min(self._tasks, len(rows)))
        try:
            tasks = [self._pool.submit(self._read, share, self._formats, self._alike) for share in shares]
            parts = [task.result() for task in tasks]
        except BrokenProcessPool as error:
            raise UserError(
                f"A process of data.workers={self._workers} has ended: it ran out of memory, or its module cannot be "
                "imported. A script of your own needs `if __name__ == '__main__':` before what it runs."
            ) from error
        except UserError as error:
            raise UserError(f"{self._name}, {error}") from error
        return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def _processes(examples: Any, workers: int, name: str) -> ProcessPoolExecutor:
    try:
        pickle.dumps(examples)
    except Exception as error:
        raise UserError(
            f"data.workers={workers} needs a copy of {name} in each process, and it cannot be copied: {error}. "
            "Open files and connections when the first row is read, or set data.workers=0."
        ) from error
    context = multiprocessing.get_context("spawn")  # a fork would copy TensorFlow's threads in the middle of work
    return ProcessPoolExecutor(workers, context, _begin, (examples,))


def _begin(examples: Any) -> None:
    _own.append(examples)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides what an interruption means
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    run = multiprocessing.parent_process()
    assert run is not None
    wait([run.sentinel])
    os._exit(1)


def _read_own(rows: np.ndarray, formats: Formats, alike: str) -> dict[str, np.ndarray]:
    return read_rows(_own[0], rows, formats, alike)


def _is_batched(examples: Any) -> bool:
    return callable(getattr(examples, "gather", None))


def read_rows(examples: Any, rows: np.ndarray, formats: Formats, alike: str) -> dict[str, np.ndarray]:
    """Return rows of an object as new arrays [n, ...] by name, checked against the formats, if there are any yet."""
    if not _is_batched(examples):
        found = []
        for row in rows.tolist():
            example = _arrays(partial(operator.getitem, examples, row), f"row {row}")
            _check_alike({name: (each.dtype, each.shape) for name, each in example.items()}, formats, row, alike)
            found.append(example)
        return {name: np.stack([each[name] for each in found]) for name in found[0]}
    first, count = int(rows[0]), len(rows)
    batch = _arrays(lambda: examples.gather(rows.copy()), f"row {first}" + f" and {count - 1} more" * (count > 1))
    for name, array in batch.items():
        if array.ndim == 0 or len(array) != count:
            raise UserError(f"row {first}: gather gave {name} of shape {list(array.shape)} for {count} rows.")
    _check_alike({name: (each.dtype, each.shape[1:]) for name, each in batch.items()}, formats, first, alike)
    return batch


def _arrays(read: Callable[[], Any], where: str) -> dict[str, np.ndarray]:
    """Return what an object gives as arrays by name; they are copies, since it may reuse its own for the next row."""
    try:
        given = read()
        if isinstance(given, tuple | list) and len(given) == 2:
            given = {INPUTS: given[0], TARGETS: given[1]}
        if not isinstance(given, Mapping) or not {INPUTS, TARGETS} <= given.keys():
            found = f"the keys {', '.join(map(str, given))}" if isinstance(given, Mapping) else type(given).__name__
            raise UserError(f"received {found}; expected inputs and target, or a mapping with these two.")
        arrays = {str(name): np.array(value) for name, value in given.items()}
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except Exception as error:  # noqa: BLE001 - it is the user's code
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{where}: {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno}). Fix the class "
            "that gives it, or the example."
        ) from None  # its traceback does not leave a process
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf" or array.dtype.itemsize > LARGEST_NUMBER:
            raise UserError(f"{where}: {name} of dtype {array.dtype}; expected numbers. Convert them.")
    return {name: arrays[name].astype(arrays[name].dtype.newbyteorder("="), copy=False) for name in sorted(arrays)}


def _check_alike(found: Formats, formats: Formats, row: int, alike: str) -> None:
    if not formats or found == formats:
        return
    shown, wanted = (
        ", ".join(f"{name} {each[0]} of shape {list(each[1])}" for name, each in one.items() if other.get(name) != each)
        for one, other in ((found, formats), (formats, found))
    )
    raise UserError(f"row {row}: {shown or 'less'}; expected {wanted or 'no more'}, as in row 0. {alike}")
