"""The store of a run's checkpoints, written beside training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hookline.trainer.errors import UserError
from hookline.trainer.files import remove
from hookline.trainer.run.checkpoint_files import (
    DAMAGED,
    INDEX,
    Checkpoint,
    DamagedError,
    Index,
    Snapshot,
    checkpoint_names,
    complete_index,
    hide_directories,
    leftovers,
    read_checkpoint,
    read_index,
    read_manifest,
    read_manifests,
    replace_synced,
    set_aside,
    to_json,
    unused,
    write_checkpoint,
    write_index,
)


class BackgroundWriter:
    """Write snapshots in a thread, one at a time: the next one waits until the one before is written.

    What could not be written is kept in `unwritten`, one more copy for each tag, until a later snapshot has its tags,
    and tried again before the next one. Nothing is written past it: the disk always holds what a kill could have left.
    """

    def __init__(self, write: Callable[[Snapshot], bool]) -> None:
        self._write = write
        self.unwritten: list[Snapshot] = []
        self._thread: threading.Thread | None = None

    def submit(self, snapshot: Snapshot) -> None:
        """Have a snapshot written soon. Its tensors are read here."""
        self.wait()
        self.unwritten = _without(self.unwritten, snapshot.tags)
        snapshots = [*self.unwritten, replace(snapshot, tensors=dict(snapshot.tensors))]
        self._thread = threading.Thread(target=self._write_all, args=[snapshots], name="checkpoints")  # an exit waits
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is left to write."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def retry(self) -> None:
        """Try once more to write what could not be written, and return when nothing is being written."""
        self.wait()
        self._write_all(self.unwritten)

    def forget(self) -> None:
        """Drop what could not be written: training goes back to before it."""
        self.wait()
        self.unwritten = []

    def _write_all(self, snapshots: list[Snapshot]) -> None:
        written = 0
        while written < len(snapshots) and self._write(snapshots[written]):
            written += 1
        self.unwritten = snapshots[written:]


def _without(snapshots: list[Snapshot], tags: frozenset[str]) -> list[Snapshot]:
    """Return the snapshots that still have a tag once some tags belong to a later one."""
    return [replace(each, tags=each.tags - tags) for each in snapshots if each.tags - tags]


class CheckpointStore:
    """Write and read the checkpoints of one run directory.

    A checkpoint is a directory `step_<n>`; `index.json` says which one each tag means. Everything is written under a
    temporary name and synced: the files, the manifest with their sha256, the directory. Then it is renamed, the index
    follows, and checkpoints that are no longer kept are removed: the directory always holds the old or the new, whole.
    A failed write appears in `problems` and never stops training; it is tried again with the next save, and by
    `finish`. `keep_last` checkpoints that were "last" stay.
    """

    def __init__(self, directory: Path, *, keep_last: int = 2, environment: Mapping[str, Any] | None = None) -> None:
        self.directory, self.keep_last = directory, keep_last
        self._environment = dict(environment or {})
        self._writer = BackgroundWriter(self._write)
        self._problems: dict[str, bool] = {}  # whether each has been returned
        self._reason = ""
        self._aside: set[str] = set()

    def save(self, tags: set[str], step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Write a checkpoint in the background and let the tags mean it; see `BackgroundWriter` for when this waits."""
        text = to_json(dict(state), "The state of the run and its hooks")
        self._writer.submit(Snapshot(frozenset(tags), step, tensors, text))

    def wait(self) -> None:
        """Return when everything is on the disk, or is among the problems."""
        self._writer.wait()

    def finish(self) -> None:
        """Return when everything is on the disk; try failed writes once more."""
        self._writer.retry()

    def unsaved(self) -> dict[str, int]:
        """Return the step of each tag whose state is not on the disk."""
        self.wait()
        return {tag: each.step for each in self._writer.unwritten for tag in sorted(each.tags)}

    def unsaved_text(self) -> str | None:
        """Return which states are not on the disk, why, and what to do; None if all are."""
        steps = self.unsaved()
        if not steps:
            return None
        named = " and ".join(f"'{tag}' (step {step})" for tag, step in steps.items())
        manifests = read_manifests(self.directory)
        newest = f"step {manifests[-1].step}" if manifests else None
        there = f"{newest.capitalize()} is on disk" if newest else "No checkpoint is on disk"
        resume = f"resume from {newest or 'the start'}: python train.py resume={self.directory.parent}"
        return f"Not saved: {named}: {self._reason}. {there}. Make room, then {resume}"

    def problems(self) -> list[str]:
        """Return what went wrong and was not returned before, one line each."""
        new = [problem for problem, returned in self._problems.items() if not returned]
        self._problems |= dict.fromkeys(new, True)
        return new

    def tags(self) -> dict[str, str]:
        """Return the name of the checkpoint that each tag means."""
        self.wait()
        return dict(self._index().tags)

    def load(self, tag: str) -> Checkpoint:
        """Return the checkpoint that a tag means, once its hashes are checked."""
        tags = self.tags()
        if tag not in tags:
            raise UserError(
                f"No checkpoint '{tag}' in {self.directory}. Expected one of: {', '.join(sorted(tags)) or 'none'}."
            )
        return read_checkpoint(read_manifest(self.directory / tags[tag]))

    def newest(self) -> Checkpoint | None:
        """Return the checkpoint that was written last and is sound; None if none was ever written.

        Damaged ones are set aside. Failed writes are forgotten: training continues from what is on the disk.
        """
        self._writer.forget()
        self._index()  # reports what is named and missing
        checkpoint = self._first_sound()
        if checkpoint is not None:
            self._index(repair=True)
        elif (self.directory / INDEX).exists() or checkpoint_names(self.directory) or set_aside(self.directory):
            raise UserError(
                f"No checkpoint in {self.directory} is sound: all that were written are damaged or gone. Expected one "
                "at least: copy one back from elsewhere, or start a new run."
            )
        return checkpoint

    def sweep(self) -> None:
        """Remove what killed writers left behind, before training in this directory."""
        self.wait()
        with suppress(OSError):  # they do no harm, and the next save tries again
            for path in leftovers(self.directory):
                remove(path)

    def _write(self, snapshot: Snapshot) -> bool:
        """Write a checkpoint and the index, and remove what is not kept; called in the background."""
        try:
            path, index = unused(self.directory, f"step_{snapshot.step:08d}"), self._index()
            write_checkpoint(path, snapshot, index.number + 1, self._environment)
        except Exception as error:  # noqa: BLE001 - training continues, whatever the disk does
            self._reason = _reason(error)
            self._problem(
                f"The checkpoint of step {snapshot.step} could not be written: {self._reason}. Earlier ones stay."
            )
            return False
        try:
            index = index.with_checkpoint(read_manifest(path))
            index = replace(index, kept=index.kept[-self.keep_last :])
            write_index(self.directory, index)
            hide_directories(self.directory / each for each in checkpoint_names(self.directory) - index.names)
            for each in leftovers(self.directory):
                remove(each)
        except Exception as error:  # noqa: BLE001 - as above
            self._problem(f"Step {snapshot.step} is saved, but older files could not be removed: {_reason(error)}.")
        return True

    def _first_sound(self) -> Checkpoint | None:
        """Return the newest checkpoint that is sound, and set aside the damaged ones found on the way."""
        for name in sorted(checkpoint_names(self.directory)):
            try:
                read_manifest(self.directory / name)
            except DamagedError as error:
                self._set_aside(name, error)
        for manifest in reversed(read_manifests(self.directory)):
            try:
                return read_checkpoint(manifest)
            except DamagedError as error:
                self._set_aside(manifest.path.name, error)
        return None

    def _set_aside(self, name: str, error: DamagedError) -> None:
        path = unused(self.directory, DAMAGED + name)
        try:
            replace_synced(self.directory / name, path)
            self._aside.add(name)
            self._problem(f"{error} It is set aside as {path.name}.")
        except OSError as failure:
            self._problem(f"{error} It could not be set aside: {_reason(failure)}.")

    def _index(self, *, repair: bool = False) -> Index:
        """Return what the tags mean; problems report an index.json that is damaged or names what is missing."""
        names, stored = checkpoint_names(self.directory), None
        try:
            stored = read_index(self.directory)
        except DamagedError as error:
            self._problem(f"{error} The manifests say which checkpoint is which.")
        if stored is not None and (missing := sorted(stored.names - names - self._aside)):
            self._problem(f"{self.directory / INDEX} names {', '.join(missing)}, which is not there.")
        index = complete_index(stored, read_manifests(self.directory), names)
        if repair and index != stored:
            try:
                write_index(self.directory, index)
            except OSError as error:
                self._problem(f"{self.directory / INDEX} could not be written: {_reason(error)}.")
        return index

    def _problem(self, line: str) -> None:
        self._problems.setdefault(line, False)


def _reason(error: Exception) -> str:
    return str((error.strerror if isinstance(error, OSError) else None) or error).rstrip(".")


class MemoryStore:
    """Keep the latest checkpoint of each tag of a run that writes nothing, as `CheckpointStore` does on the disk."""

    def __init__(self) -> None:
        self.keep_last = 1  # of no effect
        self._kept: dict[str, Checkpoint] = {}

    def save(self, tags: set[str], step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        self._kept |= dict.fromkeys(tags, Checkpoint(step, dict(tensors), dict(state), {}))

    def finish(self) -> None: ...

    def sweep(self) -> None: ...

    def unsaved(self) -> dict[str, int]:
        return {}

    def unsaved_text(self) -> None: ...

    def problems(self) -> list[str]:
        return []

    def tags(self) -> dict[str, str]:
        return {tag: f"step_{kept.step:08d}" for tag, kept in self._kept.items()}

    def load(self, tag: str) -> Checkpoint:
        return self._kept[tag]

    def newest(self) -> Checkpoint | None:
        return max(self._kept.values(), key=lambda kept: kept.step, default=None)


Store = CheckpointStore | MemoryStore
"""Where a run keeps its checkpoints."""
