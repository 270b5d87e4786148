"""The Optuna study of a search, as opened by its workers and by the process of each trial."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from hookline.trainer.files import open_lock

TRIAL = "HOOKLINE_TRIAL"  # environment variable with the trial of a process as JSON: storage, study, number from 0
PRUNED = "pruned: "  # prefix of the stop reason when a pruner stops a run


def open_storage(place: str) -> Any:
    """Return Optuna's storage: the database at a URL, or the journal at a path."""
    import optuna  # an optional dependency
    from optuna.storages import journal

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if "://" in place:
        waits = {"connect_args": {"timeout": 60}} if place.startswith("sqlite") else None
        return optuna.storages.RDBStorage(place, engine_kwargs=waits)
    os.close(open_lock(Path(place)))  # refuses all but regular files: the directory may be untrusted
    lock: Any = JournalLock(Path(place))
    return optuna.storages.JournalStorage(journal.JournalFileBackend(place, lock_obj=lock))


class JournalLock:
    """Let one process at a time write a journal.

    The operating system releases the lock of a killed process. Optuna's own locks are files that a killed process
    leaves behind, so that the others wait for 30 seconds.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._descriptor = -1

    def acquire(self) -> bool:
        """Wait for the lock; repair a journal that ends with an incomplete line."""
        self._descriptor = open_lock(self._journal.with_name(f".{self._journal.name}.lock"))
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._cut_torn_line()
        return True

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def _cut_torn_line(self) -> None:
        """Remove an incomplete last line, left by a kill or a full disk: it would make all later lines unreadable."""
        with self._journal.open("rb+") as file:
            content_end = file.seek(0, os.SEEK_END)
            file.seek(max(0, content_end - 1))
            if file.read() in (b"", b"\n"):
                return
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
