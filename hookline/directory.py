"""The run directory of a trainer: made, opened again, locked while a fit writes in it."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from hookline.callbacks import NAME as HISTORY
from hookline.trainer.config.resume import config_digest
from hookline.trainer.config.settings import MISSING, differing, spread_settings
from hookline.trainer.config.stored import FILE_NAME, read_stored
from hookline.trainer.errors import UserError
from hookline.trainer.run.checkpoint import Checkpoint, CheckpointStore, MemoryStore, Store
from hookline.trainer.run.directory import choose_directory, config_text, make_directory
from hookline.trainer.run.lock import locked
from hookline.trainer.run.resume import changed_environment, check_config
from hookline.trainer.run.session import open_store

KEY = "run_dir"
NAME = "python"
NOWHERE = Path("(no run directory)")


class Place:
    """Say where a fit writes.

    Attributes:
        directory: of the run; one that never is, where nothing is written.
        store: for its checkpoints.
    """

    def __init__(self, run_dir: Path | None, config: dict[str, Any], *, resume: bool, goes_on: bool) -> None:
        """Look at the directory; nothing is opened.

        Args:
            run_dir: that was asked for; None writes nothing.
            config: of the trainer.
            resume: whether to resume what is there.
            goes_on: whether this process trained there before.

        Raises:
            UserError: something else is there already, or nobody may write there.
        """
        self.directory = run_dir or NOWHERE
        self.store: Store = MemoryStore()
        self._config, self._resume = config, resume
        self._old = run_dir is not None and (resume or goes_on) and is_run(run_dir)
        self._new = run_dir is not None and not self._old
        if self._new:
            self.directory, self.store = new_directory(self.directory, config, NAME)

    def open(self, stack: ExitStack) -> Checkpoint | None:
        """Lock a directory that is there, and return the checkpoint to resume from.

        Args:
            stack: holds the lock.
        """
        if not self._old:
            return None
        self.store, checkpoint = open_directory(stack, self.directory, self._config, resume=self._resume)
        return checkpoint

    def make(self, stack: ExitStack, *, config: dict[str, Any]) -> bool:
        """Make a new directory, and lock it; return whether there is one.

        Args:
            stack: holds the lock.
            config: of the trainer.
        """
        if self._new:
            make_directory(self.directory, config, [])
            stack.enter_context(locked(self.directory))
        return self._new

    def known(self, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """Return what the fit of a checkpoint said of itself; nothing where there is none.

        Args:
            checkpoint: of a fit.
        """
        if checkpoint is None:
            return {}
        known: dict[str, Any] = checkpoint.state["hooks"][HISTORY]["fit"]
        return {**known, "resumes": True}


def as_stored(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config as it is read again from its file.

    Args:
        config: plain values.
    """
    stored: dict[str, Any] = yaml.safe_load(config_text(config))
    return stored


def is_run(directory: Path) -> bool:
    """Return whether a directory holds a run.

    Args:
        directory: perhaps not there.
    """
    return (directory / FILE_NAME).is_file()


def new_directory(directory: Path, config: dict[str, Any], name: str) -> tuple[Path, CheckpointStore]:
    """Return the path of a new run directory, not made yet, and the store in it.

    Args:
        directory: that was asked for.
        config: of the trainer.
        name: of the recipe.

    Raises:
        UserError: something is there already, or nobody may write there.
    """
    path = choose_directory(str(directory), name, datetime.now())
    return path, open_store(path, config_digest(as_stored(config)))


def open_directory(
    stack: ExitStack, directory: Path, config: dict[str, Any], *, resume: bool
) -> tuple[CheckpointStore, Checkpoint | None]:
    """Lock the directory of a run, and return its store and its newest sound checkpoint.

    Args:
        stack: holds the lock.
        directory: of the run.
        config: of the trainer; it must be that of the run.
        resume: whether to continue from a checkpoint; otherwise from memory.

    Raises:
        UserError: another process trains there, or another trainer did.
    """
    stack.enter_context(locked(directory))
    stored = read_stored(str(directory), KEY)
    check_same(stored, as_stored(config), directory)
    digest = config_digest(stored)
    store = open_store(directory, digest)
    if not resume:
        return store, None
    checkpoint = store.newest()
    for problem in store.problems():
        warnings.warn(problem, stacklevel=2)
    check_config(directory, checkpoint, digest)
    for difference in changed_environment(directory):
        warnings.warn(f"resume: {difference}; the bits may differ from those of a whole run.", stacklevel=2)
    return store, checkpoint


def check_same(stored: dict[str, Any], config: dict[str, Any], directory: Path) -> None:
    """Refuse to continue a run of another trainer.

    Args:
        stored: config of the run.
        config: of the trainer.
        directory: of the run.

    Raises:
        UserError: names what differs.
    """
    settings = spread_settings([stored, config], (KEY,))
    if keys := differing(settings):
        was, now = settings[keys[0]]
        shown = "nothing" if was is MISSING else repr(was)
        raise UserError(
            f"{directory} is the run of another trainer: {keys[0]} was {shown} and is {now!r}. Expected the same "
            "arguments, or another run_dir."
        )
