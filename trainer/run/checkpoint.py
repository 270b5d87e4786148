"""The store of a run's checkpoints, which a background thread writes during training."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.files import remove
from hookline.trainer.run import checkpoint_files as disk


class CheckpointStore:
    """Write and read the checkpoints of one run directory.

    A checkpoint is a directory `step_<n>`; its manifest has the tags for which it was written, and its number in the
    order of writing. Everything is written under a temporary name and synced: the files, the manifest with their
    sha256, the directory. Then it is renamed, and obsolete checkpoints are removed, so the directory always holds the
    old or the new one, complete. `keep_last` checkpoints that were "last" are kept.

    A thread writes one checkpoint at a time. A failed write appears in `problems` and never stops training. It is
    retried before the next one, and by `finish`, unless a later save has its tags. No later checkpoint is written
    before it succeeds: the disk always holds a state that a kill could have left.
    """

    def __init__(self, directory: Path, *, keep_last: int = 2, environment: Mapping[str, Any] | None = None) -> None:
        self.directory, self.keep_last = directory, keep_last
        self._environment = dict(environment or {})
        self._unwritten: list[disk.Snapshot] = []
        self._thread: threading.Thread | None = None
        self._problems: dict[str, bool] = {}  # whether each has been returned
        self._reason = ""

    def save(self, tags: set[str], step: int, tensors: dict[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Write a checkpoint in the background, and let the tags refer to it."""
        text = json.dumps(dict(state), indent=1)
        self.wait()
        earlier = [replace(each, tags=each.tags - tags) for each in self._unwritten if each.tags - tags]
        snapshots = [*earlier, disk.Snapshot(frozenset(tags), step, tensors, text)]
        self._thread = threading.Thread(target=self._write_all, args=[snapshots], name="checkpoints")  # an exit waits
        self._thread.start()

    def wait(self) -> None:
        """Wait for the background write; if it failed, that is among the problems."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        """Wait for the background writes, and try failed ones once more."""
        self.wait()
        self._write_all(self._unwritten)

    def unsaved(self) -> dict[str, int]:
        """Return the step of each tag with a state that is not on disk."""
        self.wait()
        return {tag: each.step for each in self._unwritten for tag in sorted(each.tags)}

    def unsaved_text(self, resume: str) -> str | None:
        """Return a message on which states are not on disk, why, and how to resume; None if all are."""
        steps = self.unsaved()
        if not steps:
            return None
        named = " and ".join(f"'{tag}' (step {step})" for tag, step in steps.items())
        manifests = disk.read_manifests(self.directory)
        newest = f"step {manifests[-1].step}" if manifests else None
        there = f"{newest.capitalize()} is on disk" if newest else "No checkpoint is on disk"
        resume = f"resume from {newest or 'the start'}: {resume}"
        return f"Not saved: {named}: {self._reason}. {there}. Make room, then {resume}"

    def problems(self) -> list[str]:
        """Return the problems that were not returned before, one line each."""
        new = [problem for problem, returned in self._problems.items() if not returned]
        self._problems |= dict.fromkeys(new, True)
        return new

    def warn(self) -> None:
        """Warn about new problems."""
        for problem in self.problems():
            warnings.warn(problem, stacklevel=3)

    def best_or_last(self) -> str:
        """Return the tag of the best checkpoint, or of the last one if there is no best."""
        return "best" if "best" in self.tags() else "last"

    def tags(self) -> dict[str, str]:
        """Return the name of the checkpoint that each tag refers to."""
        self.wait()
        manifests = disk.read_manifests(self.directory, lambda path, error: self._problem(str(error)))
        return disk.index_of(manifests, self.keep_last).tags

    def load(self, tag: str) -> disk.Checkpoint:
        """Return the checkpoint that a tag refers to, after checking its hashes."""
        tags = self.tags()
        check_choice(f"checkpoint in {self.directory}", tag, tags)
        return disk.read_checkpoint(disk.read_manifest(self.directory / tags[tag]))

    def load_sound(self, tag: str) -> disk.Checkpoint:
        """Return the checkpoint of a tag; raise if any manifest is damaged, since it may be the one of the tag."""
        self.tags()
        if problems := self.problems():
            lines = " ".join(problems)
            raise UserError(f"{lines} Repair that checkpoint, or move it away to use an older one.")
        return self.load(tag)

    def best(self) -> disk.Checkpoint | None:
        """Return the best checkpoint; None if there is none, or if it is damaged and set aside."""
        tags = self.tags()
        try:
            return self.load("best") if "best" in tags else None
        except disk.DamagedError as error:
            self._set_aside(self.directory / tags["best"], error)
            return None

    def newest(self) -> disk.Checkpoint | None:
        """Return the newest sound checkpoint, and set damaged ones aside; None if none was ever written."""
        self.wait()
        self._unwritten = []  # training continues from what is on the disk
        checkpoint = self._first_sound()
        names, aside = disk.checkpoint_names(self.directory), disk.set_aside(self.directory)
        if checkpoint is None and (names or aside or (self.directory / disk.INDEX).exists()):
            raise UserError(
                f"No checkpoint in {self.directory} is sound: all that were written are damaged or gone. Expected at "
                "least one: copy one back from a backup, or start a new run."
            )
        return checkpoint

    def sweep(self) -> None:
        """Clean up after killed writers before training here: remove leftovers and old checkpoints, index the rest."""
        self.wait()
        with suppress(OSError):  # harmless, and the next save tries again
            self._remove_leftovers()
            if manifests := disk.read_manifests(self.directory):
                self._keep(manifests, len(manifests))  # how many to keep is not known yet

    def _write_all(self, snapshots: list[disk.Snapshot]) -> None:
        written = 0
        while written < len(snapshots) and self._write(snapshots[written]):
            written += 1
        self._unwritten = snapshots[written:]

    def _write(self, snapshot: disk.Snapshot) -> bool:
        """Write a checkpoint and the index, and remove obsolete checkpoints; return whether the first succeeded."""
        try:
            path = disk.unused(self.directory, f"step_{snapshot.step:08d}")
            manifests = disk.read_manifests(self.directory)
            number = manifests[-1].number + 1 if manifests else 1
            disk.write_checkpoint(path, snapshot, number, self._environment)
        except Exception as error:  # noqa: BLE001 - training continues, whatever the disk does
            self._reason = _reason(error)
            self._problem(
                f"The checkpoint of step {snapshot.step} could not be written: {self._reason}. Earlier ones are kept."
            )
            return False
        try:
            self._keep([*manifests, disk.read_manifest(path)], self.keep_last)
        except Exception as error:  # noqa: BLE001 - as above
            undone = f"{disk.INDEX} could not be written, or older files not removed"
            self._problem(f"Step {snapshot.step} is saved, but {undone}: {_reason(error)}.")
        return True

    def _keep(self, manifests: list[disk.Manifest], keep_last: int) -> None:
        """Write the index of checkpoints, and remove those that are not in it."""
        index = disk.index_of(manifests, keep_last)
        disk.write_index(self.directory, index, manifests[-1].number)
        for each in manifests:
            if each.path.name not in index.names:  # hidden first, so that none is visible half removed
                disk.replace_synced(each.path, each.path.with_name(f".{each.path.name}.gone"))
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for path in disk.leftovers(self.directory):
            remove(path)

    def _first_sound(self) -> disk.Checkpoint | None:
        """Return the newest checkpoint that is sound, and set aside the damaged ones found on the way."""
        for manifest in reversed(disk.read_manifests(self.directory, self._set_aside)):
            try:
                return disk.read_checkpoint(manifest)
            except disk.DamagedError as error:
                self._set_aside(manifest.path, error)
        return None

    def _set_aside(self, path: Path, error: disk.DamagedError) -> None:
        aside = disk.unused(self.directory, disk.DAMAGED + path.name)
        try:
            disk.replace_synced(path, aside)
            self._problem(f"{error} It is set aside as {aside.name}.")
        except OSError as failure:
            self._problem(f"{error} It could not be set aside: {_reason(failure)}.")

    def _problem(self, line: str) -> None:
        self._problems.setdefault(line, False)


def _reason(error: Exception) -> str:
    return str((error.strerror if isinstance(error, OSError) else None) or error).rstrip(".")


class MemoryStore(CheckpointStore):
    """Keep the latest checkpoint of each tag in memory, for a run that writes nothing."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))
        self._kept: dict[str, disk.Checkpoint] = {}

    def save(self, tags: set[str], step: int, tensors: dict[str, np.ndarray], state: Mapping[str, Any]) -> None:
        self._kept |= dict.fromkeys(tags, disk.Checkpoint(step, tensors, dict(state), {}))

    def tags(self) -> dict[str, str]:
        return {tag: f"step_{kept.step:08d}" for tag, kept in self._kept.items()}

    def load(self, tag: str) -> disk.Checkpoint:
        return self._kept[tag]

    def newest(self) -> disk.Checkpoint | None:
        return max(self._kept.values(), key=lambda kept: kept.step, default=None)
