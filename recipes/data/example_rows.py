"""Rows of a user's object, read by threads or processes.

The rows of each batch are divided among the workers. Nothing is read ahead, so a batch is bit-identical at any step,
and there is no order to save. A process imports the user's module and NumPy, but not TensorFlow.
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
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hookline.trainer.errors import UserError

INPUTS, TARGETS = "inputs", "targets"
LARGEST_NUMBER = 8  # bytes: TensorFlow has no long double
_own: list[Any] = []  # the object that this process reads, if it is a worker

Formats: TypeAlias = "dict[str, tuple[np.dtype, tuple[int, ...]]]"  # dtype and shape of one row, by name


def processes(examples: Any, workers: int, name: str) -> ProcessPoolExecutor:
    """Return a pool of processes, each with a copy of the object, which lives until Python ends."""
    try:
        pickle.dumps(examples)
    except Exception as error:
        raise UserError(
            f"data.workers={workers} needs a copy of {name} in each process, and it cannot be copied: {error}. "
            "Open files and connections when the first row is read, or set data.workers=0."
        ) from error
    context = multiprocessing.get_context("spawn")  # a fork would copy the state of TensorFlow's running threads
    return ProcessPoolExecutor(workers, context, _begin, (examples,))


def _begin(examples: Any) -> None:
    _own.append(examples)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run handles interruptions
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    run = multiprocessing.parent_process()
    assert run is not None
    wait([run.sentinel])
    os._exit(1)


def read_own(rows: np.ndarray, formats: Formats, alike: str) -> dict[str, np.ndarray]:
    """Return rows of this process's copy of the object; see `read_rows`."""
    return read_rows(_own[0], rows, formats, alike)


def is_batched(examples: Any) -> bool:
    """Return whether an object reads several rows at once."""
    return callable(getattr(examples, "gather", None))


def read_rows(examples: Any, rows: np.ndarray, formats: Formats, alike: str) -> dict[str, np.ndarray]:
    """Return rows of an object as new arrays [n, ...] by name, checked against the formats of row 0 once known."""
    if not is_batched(examples):
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
    """Return the result of `read` as arrays by name, copied because the object may reuse its own for the next row."""
    try:
        given = read()
        if isinstance(given, tuple | list) and len(given) == 2:
            given = {INPUTS: given[0], TARGETS: given[1]}
        if not isinstance(given, Mapping) or not {INPUTS, TARGETS} <= given.keys():
            found = f"the keys {', '.join(map(str, given))}" if isinstance(given, Mapping) else type(given).__name__
            expected = "inputs and target, or a mapping with these two, and sample_weights if there are any"
            raise UserError(f"received {found}; expected {expected}.")
        arrays = {str(name): np.array(value) for name, value in given.items()}
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except Exception as error:  # noqa: BLE001 - it is the user's code
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{where}: {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno}). Fix the class "
            "that gives it, or the example."
        ) from None  # a traceback cannot be sent from a worker process
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
    raise UserError(f"row {row}: {shown or 'arrays missing'}; expected {wanted or 'no more'}, as in row 0. {alike}")
