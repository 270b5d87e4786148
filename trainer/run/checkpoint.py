"""The store of a run's checkpoints, written beside training."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hookline.trainer.errors import UserError
from hookline.trainer.files import open_new, remove, sync_folder
from hookline.trainer.run.checkpoint_files import (
    DAMAGED,
    LAST,
    DamagedError,
    checkpoint_names,
    describe_tensors,
    hide_directories,
    make_synced,
    read_json,
    read_tensors,
    remove_leftovers,
    replace_synced,
    set_aside,
    to_json,
    unused,
    write_synced,
    write_tensors,
)
from hookline.trainer.run.checkpoint_index import (
    INDEX,
    STATE,
    TENSORS,
    Index,
    Manifest,
    check_files,
    complete_index,
    read_index,
    read_manifest,
    read_manifests,
    write_index,
    write_manifest,
)


@dataclass(frozen=True)
class Snapshot:
    """Hold what a checkpoint will hold, as it is now."""

    tags: frozenset[str]
    step: int
    tensors: Mapping[str, np.ndarray]  # which nobody changes any more; until it is submitted, what gives them
    state: bytes | None  # None where it is too large to be written


class BackgroundWriter:
    """Write one snapshot after another in a thread, which is there only while there is something to write.

    One is being written, one may wait. A waiting one that is only the "last" gives way to a later one, which is better
    to continue from and takes its tag; any other is waited for. So memory holds two copies of a run at most besides the
    run, and training stalls only where two saves that must both stay come faster than the disk writes one.

    What could not be written is kept, one more copy for each tag, until a later snapshot has its tags, and tried again
    before the next one is. Nothing is written past it: at any moment, the disk holds what a kill could have left.

    Attributes:
        unwritten: what could not be written so far, in the order in which it came.
    """

    def __init__(self, write: Callable[[Snapshot], bool]) -> None:
        """Set up; no thread is started."""
        self._write = write
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self.unwritten: list[Snapshot] = []
        self._thread: threading.Thread | None = None

    def submit(self, snapshot: Snapshot) -> None:
        """Have a snapshot written soon. Its tensors are asked for here, once there is room for them."""
        with self._changed:
            while self._waiting is not None and self._waiting.tags != {LAST}:
                self._changed.wait()
            if self._waiting is not None:
                snapshot = replace(snapshot, tags=snapshot.tags | {LAST})
            self._waiting = None  # before the next one is read: two copies, not three
            self.unwritten = _without(self.unwritten, snapshot.tags)
            self._waiting = replace(snapshot, tensors=dict(snapshot.tensors))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="checkpoints")  # an exit waits for it
                try:
                    self._thread.start()
                except RuntimeError:  # the system has no thread left
                    self._work()

    def wait(self) -> None:
        """Return when nothing is left to write."""
        with self._changed:
            while self._thread is not None:
                self._changed.wait()

    def retry(self) -> None:
        """Try once more to write what could not be written, and return when nothing is being written."""
        self.wait()
        self._write_all(self.unwritten)

    def forget(self) -> None:
        """Let go of what could not be written: training goes back to before it."""
        self.wait()
        self.unwritten = []

    def _work(self) -> None:
        while (snapshot := self._next()) is not None:
            self._write_all([*_without(self.unwritten, snapshot.tags), snapshot])

    def _write_all(self, snapshots: list[Snapshot]) -> None:
        written = 0
        while written < len(snapshots) and self._write(snapshots[written]):
            written += 1
        with self._changed:
            self.unwritten = snapshots[written:]

    def _next(self) -> Snapshot | None:
        """Return what waits; where nothing does, this thread is over."""
        with self._changed:
            snapshot, self._waiting = self._waiting, None
            if snapshot is None:
                self._thread = None
            self._changed.notify_all()
            return snapshot


def _without(snapshots: list[Snapshot], tags: frozenset[str]) -> list[Snapshot]:
    """Return the snapshots that still have a tag once some tags belong to a later one."""
    return [replace(each, tags=each.tags - tags) for each in snapshots if each.tags - tags]


@dataclass(frozen=True)
class Checkpoint:
    """Hold a loaded checkpoint.

    Attributes:
        step: steps made when it was written.
        tensors: arrays by key, such as "network/model/dense/kernel".
        state: JSON values.
        environment: what the bits may depend on, as it was when the checkpoint was written.
    """

    step: int
    tensors: dict[str, np.ndarray]
    state: dict[str, Any]
    environment: dict[str, Any]


def write_checkpoint(path: Path, snapshot: Snapshot, number: int, environment: Mapping[str, Any]) -> None:
    """Write a checkpoint under a temporary name, sync it, then give it its own."""
    content = {"step": snapshot.step, "number": number, "tags": sorted(snapshot.tags)}
    content |= {"tensors": describe_tensors(snapshot.tensors), "environment": dict(environment)}
    temporary = path.with_name(f".{path.name}.tmp")
    remove(temporary)
    make_synced(path.parent)
    temporary.mkdir()
    try:
        with open_new(temporary / TENSORS) as file:
            write_tensors(file, snapshot.tensors)
            file.flush()
            os.fsync(file.fileno())
        write_synced(temporary / STATE, snapshot.state or b"")
        write_manifest(temporary, content)
        sync_folder(temporary)
        replace_synced(temporary, path)
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk would stay full
        raise


def read_checkpoint(manifest: Manifest) -> Checkpoint:
    """Return a checkpoint, once its files are checked."""
    check_files(manifest)
    state = read_json(manifest.path / STATE)
    if not isinstance(state, dict):
        raise DamagedError(f"{manifest.path / STATE} is damaged: it holds no state.")
    tensors = read_tensors(manifest.path / TENSORS, manifest.tensors)
    return Checkpoint(manifest.step, tensors, state, manifest.environment)


class CheckpointStore:
    """Write and read the checkpoints of one run directory.

    A checkpoint is a directory `step_<n>`; `index.json` says which one each tag means. Everything is written under a
    temporary name and synced: the files, the manifest with their sha256, the directory. Then it gets its name, the
    index follows, and what is not kept any more goes. So at any moment the directory holds the old or the new, whole.
    A write that fails is told by `problems` and never stops training; what was there before stays. It is tried again
    with the next save, and by `finish`; `unsaved` says what is on no disk yet.

    Attributes:
        directory: <run>/checkpoints.
        keep_last: how many checkpoints that were "last" stay, 1 or more.
    """

    def __init__(self, directory: Path, *, keep_last: int = 2, environment: Mapping[str, Any] | None = None) -> None:
        """Work in `directory`, which is made at the first save."""
        self.directory, self.keep_last = directory, keep_last
        self._environment = dict(environment or {})
        self._writer = BackgroundWriter(self._write)
        self._problems: list[str] = []
        self._told: set[str] = set()
        self._reason = ""
        self._aside: set[str] = set()

    def save(self, tags: set[str], step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Write a checkpoint in the background and let the tags mean it; see `BackgroundWriter` for when this waits."""
        text = None
        try:
            text = to_json(dict(state), "The state of the run and its hooks")
        except UserError as error:
            self._fail(step, error)
        self._writer.submit(Snapshot(frozenset(tags), step, tensors, text))

    def wait(self) -> None:
        """Return when everything is on the disk, or is among the problems."""
        self._writer.wait()

    def finish(self) -> None:
        """Return when everything is on the disk; try once more where something could not be written."""
        self._writer.retry()

    def unsaved(self) -> dict[str, int]:
        """Return the step of each tag that means a state which is not on the disk."""
        self.wait()
        return {tag: each.step for each in self._writer.unwritten for tag in sorted(each.tags)}

    def unsaved_text(self) -> str | None:
        """Return which states are not on the disk, why, and what to do; None where all are there."""
        steps = self.unsaved()
        if not steps:
            return None
        named = " and ".join(f"'{tag}' (step {step})" for tag, step in steps.items())
        manifests = read_manifests(self.directory)
        newest = f"step {manifests[-1].step}" if manifests else None
        there = f"{newest.capitalize()} is on disk" if newest else "No checkpoint is on disk"
        return f"Not saved: {named}: {self._reason}. {there}. Make room, then resume from {newest or 'the start'}"

    def problems(self) -> list[str]:
        """Return what went wrong since the last call, one line each."""
        return [self._problems.pop(0) for _ in range(len(self._problems))]

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
        """Return the checkpoint that was written last and is sound; None where none ever was. Set damaged ones aside.

        What could not be written is forgotten: training continues from what could.
        """
        self._writer.forget()
        self._index()  # tells what is named and gone
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
        """Remove what killed writers left behind. For the one who trains in this directory."""
        self.wait()
        try:
            remove_leftovers(self.directory)
        except OSError as error:
            self._tell(f"Leftovers in {self.directory} could not be removed: {_reason(error)}.")

    def _write(self, snapshot: Snapshot) -> bool:
        """Write a checkpoint and the index, and remove what is not kept; called in the background."""
        if snapshot.state is None:  # told when it was asked for
            return False
        try:
            path, index = unused(self.directory, f"step_{snapshot.step:08d}"), self._index()
            write_checkpoint(path, snapshot, index.number + 1, self._environment)
        except Exception as error:  # noqa: BLE001 - training continues, whatever the disk does
            self._fail(snapshot.step, error)
            return False
        try:
            index = index.with_checkpoint(read_manifest(path))
            index = replace(index, kept=index.kept[-self.keep_last :])
            write_index(self.directory, index)
            hide_directories(self.directory / each for each in checkpoint_names(self.directory) - index.names)
            remove_leftovers(self.directory)
        except Exception as error:  # noqa: BLE001 - as above
            told = f"is written, but what it replaces could not go: {_reason(error)}."
            self._tell(f"The checkpoint of step {snapshot.step} {told}")
        return True

    def _first_sound(self) -> Checkpoint | None:
        """Return the newest checkpoint that is sound, and set aside those that are not on the way to it."""
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
            self._tell(f"{error} It is set aside as {path.name}.")
        except OSError as failure:
            self._tell(f"{error} It could not be set aside: {_reason(failure)}.")

    def _index(self, *, repair: bool = False) -> Index:
        """Return what the tags mean; problems tell where index.json is damaged or names what is not there."""
        names = checkpoint_names(self.directory)
        try:
            stored = read_index(self.directory)
        except DamagedError as error:
            stored = None
            self._tell(f"{error} The manifests say which checkpoint is which.")
        if stored is not None and (missing := sorted(stored.names - names - self._aside)):
            self._tell(f"{self.directory / INDEX} names {', '.join(missing)}, which is not there.")
        index = complete_index(stored, read_manifests(self.directory), names)
        if repair and index != stored:
            try:
                write_index(self.directory, index)
            except OSError as error:
                self._tell(f"{self.directory / INDEX} could not be written: {_reason(error)}.")
        return index

    def _fail(self, step: int, error: Exception) -> None:
        self._reason = _reason(error)
        self._tell(f"The checkpoint of step {step} could not be written: {self._reason}. Earlier ones stay.")

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self._problems.append(problem)


def _reason(error: Exception) -> str:
    return str((error.strerror if isinstance(error, OSError) else None) or error).rstrip(".")


class MemoryStore:
    """Keep the checkpoints of a run that writes nothing: of each tag the latest. Nothing can fail or be left behind.

    Attributes:
        keep_last: taken, and of no effect: one of each tag is kept.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.keep_last = 1
        self._kept: dict[str, Checkpoint] = {}

    def save(self, tags: set[str], step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Keep copies of the tensors under each tag."""
        self._kept |= dict.fromkeys(tags, Checkpoint(step, dict(tensors), dict(state), {}))

    def finish(self) -> None:
        """Do nothing."""

    def sweep(self) -> None:
        """Do nothing."""

    def unsaved(self) -> dict[str, int]:
        """Return nothing."""
        return {}

    def unsaved_text(self) -> str | None:
        """Return nothing."""
        return None

    def problems(self) -> list[str]:
        """Return no problem."""
        return []

    def tags(self) -> dict[str, str]:
        """Return the name of the checkpoint that each tag means."""
        return {tag: f"step_{kept.step:08d}" for tag, kept in self._kept.items()}

    def load(self, tag: str) -> Checkpoint:
        """Return the checkpoint that a tag means."""
        return self._kept[tag]

    def newest(self) -> Checkpoint | None:
        """Return the checkpoint of the latest step; None where none was kept."""
        return max(self._kept.values(), key=lambda kept: kept.step, default=None)


Store = CheckpointStore | MemoryStore
"""Where a run keeps its checkpoints."""
