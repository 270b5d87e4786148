"""The study of a search, as its workers and the process of each trial open it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from hookline.trainer.files import open_lock

TRIAL = "HOOKLINE_TRIAL"  # the variable that names a process's trial, as JSON: storage, study, and number from 0
PRUNED = "pruned: "  # how the reason begins for which a pruner stops a run


def open_storage(place: str) -> Any:
    """Return Optuna's storage: a database by its URL, or else a journal by its path."""
    import optuna  # an extra
    from optuna.storages import journal

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if "://" in place:
        waits = {"connect_args": {"timeout": 60}} if place.startswith("sqlite") else None
        return optuna.storages.RDBStorage(place, engine_kwargs=waits)
    os.close(open_lock(Path(place)))  # it is an ordinary file, no link: a directory may come from anybody
    lock: Any = JournalLock(Path(place))
    return optuna.storages.JournalStorage(journal.JournalFileBackend(place, lock_obj=lock))


class JournalLock:
    """Let one process at a time write a journal.

    The operating system releases the lock of a process that was killed. Optuna's own locks are files, which a kill
    leaves behind; the others then wait for 30 seconds.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._descriptor = -1

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._descriptor = open_lock(self._journal.with_name(f".{self._journal.name}.lock"))
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._cut_torn_line()
        return True

    def release(self) -> None:
        """Let the next one write."""
        os.close(self._descriptor)

    def _cut_torn_line(self) -> None:
        """Remove the half line that a kill or a full disk left at the end: with it, no later line could be read."""
        with self._journal.open("rb+") as file:
            content_end = file.seek(0, os.SEEK_END)
            file.seek(max(0, content_end - 1))
            if file.read() in (b"", b"\n"):
                return
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
