"""Open many image files by a few threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, TypeVar

from recipes.data.image_formats import SIGNATURE_BYTES, begins_as_image, unreadable

THREADS = 8
CHUNK = 256
"""Files a task: a task for each file would take longer to manage than to read."""

Value = TypeVar("Value")


def read_files(paths: Sequence[str], read: Callable[[BinaryIO], Value]) -> list[Value]:
    """Return what a function reads from each file, in the order of the files.

    Args:
        paths: files.
        read: takes an open file.

    Raises:
        UserError: a file that cannot be read; names the first.
    """

    def read_chunk(start: int) -> list[Value]:
        return [_read(path, read) for path in paths[start : start + CHUNK]]

    with ThreadPoolExecutor(THREADS) as pool:
        chunks = pool.map(read_chunk, range(0, len(paths), CHUNK))
        return [value for chunk in chunks for value in chunk]


def check_contents(paths: Sequence[str]) -> None:
    """Check that files begin as images do; that takes no more than opening them.

    Args:
        paths: files.

    Raises:
        UserError: a file that cannot be read, or is none of the kinds; names the first.
    """
    for path, beginning in zip(paths, read_files(paths, lambda file: file.read(SIGNATURE_BYTES)), strict=True):
        if not begins_as_image(beginning):
            raise unreadable(path, f"it begins with {beginning!r}" if beginning else "it is empty")


def _read(path: str, read: Callable[[BinaryIO], Value]) -> Value:
    try:
        with open(path, "rb", buffering=0) as file:
            return read(file)
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from error
