"""Do many small things by a few threads, such as opening files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

from recipes.data.image_formats import SIGNATURE_BYTES, UnreadableImage, check_beginning, unreadable
from trainer.files import open_file

THREADS = 8
"""Of those that wait for a disk most of the time."""
CHUNK = 256
"""Files a task: a task for each file would take longer to manage than to read."""

Item = TypeVar("Item")
Value = TypeVar("Value")


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_chunks(
    pool: ThreadPoolExecutor, function: Callable[[Item], Value], items: Sequence[Item], chunk: int
) -> list[Value]:
    """Return what a function returns for each item, in the order of the items.

    Args:
        pool: of threads.
        function: called once for each item.
        items: to be worked on.
        chunk: items a task.

    Raises:
        Exception: what the function raises for the first of the items for which it raises.
    """
    tasks = [items[start : start + chunk] for start in range(0, len(items), chunk)]
    done = pool.map(lambda task: [function(item) for item in task], tasks)
    return [value for values in done for value in values]


def read_files(paths: Sequence[str], read: Callable[[BinaryIO], Value]) -> list[Value]:
    """Return what a function reads from each file, in the order of the files.

    Args:
        paths: files.
        read: takes an open file.

    Raises:
        UserError: a file that cannot be read; names the first.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        return map_in_chunks(pool, lambda path: _read(path, read), paths, CHUNK)


def _read(path: str, read: Callable[[BinaryIO], Value]) -> Value:
    try:
        with open_file(path, follow=True) as file:
            return read(file)
    except OSError as error:
        raise unreadable(path, error.strerror or error) from error


def find_unreadable(paths: Sequence[str]) -> dict[int, str]:
    """Return which files do not begin as images do, and why; that takes no more than opening them.

    Args:
        paths: files.

    Returns:
        The reason by position in `paths`.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        reasons = map_in_chunks(pool, _fault_at_beginning, paths, CHUNK)
    return {row: reason for row, reason in enumerate(reasons) if reason is not None}


def _fault_at_beginning(path: str) -> str | None:
    try:
        with open_file(path, follow=True) as file:
            check_beginning(file.read(SIGNATURE_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    except UnreadableImage as error:
        return str(error)
    return None
