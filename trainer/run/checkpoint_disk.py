"""Writing so that a kill or a power cut leaves the old or the new, never half of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer import files
from trainer.errors import UserError
from trainer.files import open_new, sync_folder

MAX_JSON_BYTES = 2**26
"""The largest JSON file of a checkpoint that is written or read: 64 MiB."""


class DamagedError(UserError):
    """Report a file of a checkpoint that is not what was written."""


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and return when it is on the disk.

    Args:
        path: of the file.
        content: of the file.
    """
    with open_new(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(temporary: Path, path: Path) -> None:
    """Give something its final name, and return when the name is on the disk.

    Args:
        temporary: a file, or a directory; whole, and synced.
        path: in the same directory; a file there is replaced, a directory must not be there.
    """
    os.replace(temporary, path)
    sync_folder(path.parent)


def make_synced(path: Path) -> None:
    """Make a directory, and those above it, and return when their names are on the disk.

    Args:
        path: of the directory; may exist.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def hide_directories(paths: Iterable[Path]) -> None:
    """Take the names from directories that shall be removed, so that none is seen half removed.

    Args:
        paths: in one directory; what `leftovers` finds is left of them.
    """
    hidden = [(path, path.with_name(f".{path.name}.gone")) for path in paths]
    for path, gone in hidden:
        os.replace(path, gone)
    if hidden:
        sync_folder(hidden[0][1].parent)


def to_json(value: Any, what: str) -> bytes:
    """Return a value as JSON.

    Args:
        value: JSON values.
        what: for the message.

    Raises:
        UserError: it is too large to be read again.
    """
    content = json.dumps(value, indent=1).encode()
    if len(content) > MAX_JSON_BYTES:
        raise UserError(f"{what} takes {len(content):,} bytes as JSON. Expected {MAX_JSON_BYTES:,} at most.")
    return content


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Args:
        path: of the file.

    Raises:
        DamagedError: it cannot be read, is no JSON, or is too large for what it should be.
    """
    try:
        return files.read_json(path, MAX_JSON_BYTES)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: it is not JSON.") from error
