"""Files that can be made anew: where they lie, and how they are written so that none is ever found half done."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from trainer.user_path import user_path

PARTIAL = ".partial"


def cache_folder(cache_dir: str | None) -> Path:
    """Return the folder of cache files.

    Args:
        cache_dir: of the user; None for `hookline` in $XDG_CACHE_HOME, which is ~/.cache where it is not set.
    """
    if cache_dir is not None:
        return user_path(cache_dir, "data.cache_dir")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hookline"


def fingerprint(*values: Any) -> str:
    """Return 32 hexadecimal digits that differ where any value does.

    Args:
        values: numbers, texts, lists and dicts.
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def file_stamp(path: str | Path) -> list[Any]:
    """Return what changes when a file is written again: its path, its size, and when it was written.

    Args:
        path: of a file.

    Raises:
        OSError: it cannot be looked at.
    """
    status = os.stat(path)
    return [str(path), status.st_size, status.st_mtime_ns]


@contextmanager
def written_whole(file: Path) -> Iterator[BinaryIO]:
    """Give a file to write; it gets its name, and replaces what had it, when all of it is on the disk.

    Whatever goes wrong before, nothing is left. What a killed process left in the folder is removed.

    Args:
        file: to be written; its folder is made.

    Raises:
        OSError: it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    _remove_orphans(file.parent, host)
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.{os.getpid()}@{host}{PARTIAL}")
    try:
        with open(partial, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _remove_orphans(folder: Path, host: str) -> None:
    """Remove what processes of this machine have begun that do not run any more."""
    for partial in folder.glob(f".*@{host}{PARTIAL}"):
        process = partial.name.removesuffix(f"@{host}{PARTIAL}").rpartition(".")[2]
        if process.isdigit() and not _runs(int(process)):
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
