"""A lock: one process at a time trains in a run directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hookline.trainer.errors import UserError
from hookline.trainer.files import open_lock

FILE_NAME = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the run directory for this process. The operating system releases the lock even if the process is killed."""
    try:
        descriptor = open_lock(directory / FILE_NAME)
    except OSError as error:
        raise UserError(
            f"{directory} cannot be written: {error.strerror}. Expected a run directory of one's own."
        ) from error
    try:
        _take(descriptor, directory)
        with suppress(OSError):  # on a full disk: the process number only serves a message
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        raise UserError(
            f"{directory} is in use: the process {holder} trains in it. Expected one process for a run; wait for it, "
            "or end it."
        ) from error
