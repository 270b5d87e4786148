"""The checkpoints of a run: written in the background, whole or absent, found again past damaged ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import UserError
from trainer.run.checkpoint_content import Checkpoint, read_checkpoint, write_checkpoint
from trainer.run.checkpoint_directory import DAMAGED, checkpoint_names, remove_leftovers, set_aside, unused
from trainer.run.checkpoint_disk import DamagedError, hide_directories, replace_synced, to_json
from trainer.run.checkpoint_index import INDEX, Index, complete_index, read_index, read_manifests, write_index
from trainer.run.checkpoint_manifest import read_manifest
from trainer.run.checkpoint_writer import BackgroundWriter, Snapshot

__all__ = ["Checkpoint", "CheckpointStore"]


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
        """Work in `directory`, which is made at the first save.

        Args:
            directory: <run>/checkpoints.
            keep_last: see the attribute.
            environment: JSON values for every manifest: what the bits of the run may depend on.
        """
        self.directory, self.keep_last = directory, keep_last
        self._environment = dict(environment or {})
        self._writer = BackgroundWriter(self._write)
        self._problems: list[str] = []
        self._told: set[str] = set()
        self._reason = ""
        self._aside: set[str] = set()

    def save(self, tags: set[str], step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Write a checkpoint in the background and let the tags mean it; see `BackgroundWriter` for when this waits.

        Args:
            tags: such as {"last", "best"}.
            step: steps made.
            tensors: arrays by key, all asked for before this returns; they must not be changed afterwards.
            state: JSON values, which may.
        """
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

    def reason(self) -> str:
        """Return why a checkpoint could not be written the last time."""
        return self._reason

    def newest_step(self) -> int | None:
        """Return the step of the checkpoint that was written last; None where there is none."""
        self.wait()
        manifests = read_manifests(self.directory)
        return manifests[-1].step if manifests else None

    def problems(self) -> list[str]:
        """Return what went wrong since the last call, one line each."""
        return [self._problems.pop(0) for _ in range(len(self._problems))]

    def tags(self) -> dict[str, str]:
        """Return the name of the checkpoint that each tag means."""
        self.wait()
        return dict(self._index().tags)

    def load(self, tag: str) -> Checkpoint:
        """Return the checkpoint that a tag means, once its hashes are checked.

        Args:
            tag: "last" or "best".

        Raises:
            UserError: there is none, or it is damaged.
        """
        tags = self.tags()
        if tag not in tags:
            raise UserError(
                f"No checkpoint '{tag}' in {self.directory}. Expected one of: {', '.join(sorted(tags)) or 'none'}."
            )
        return read_checkpoint(read_manifest(self.directory / tags[tag]))

    def newest(self) -> Checkpoint | None:
        """Return the checkpoint that was written last and is sound; None where none ever was. Set damaged ones aside.

        What could not be written is forgotten: training goes on from what could.

        Raises:
            UserError: there were checkpoints, and all are damaged; or they are of another version of the format.
        """
        self._writer.forget()
        self._index()  # tells what is named and gone
        checkpoint = self._first_sound()
        if checkpoint is not None:
            self._index(repair=True)
        elif self._was_written():
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
        """Write a checkpoint and the index, and remove what is not kept; called in the background.

        Returns:
            Whether the checkpoint is on the disk.
        """
        if snapshot.state is None:  # told when it was asked for
            return False
        try:
            path, index = unused(self.directory, f"step_{snapshot.step:08d}"), self._index()
            write_checkpoint(path, snapshot, index.number + 1, self._environment)
        except Exception as error:  # noqa: BLE001 - training goes on, whatever the disk does
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
        """Return what the tags mean; problems tell where index.json is damaged or names what is not there.

        Args:
            repair: whether to write index.json anew where it says something else.
        """
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

    def _was_written(self) -> bool:
        """Return whether a checkpoint was ever written here whole."""
        index = self.directory / INDEX
        return index.exists() or bool(checkpoint_names(self.directory)) or bool(set_aside(self.directory))

    def _fail(self, step: int, error: Exception) -> None:
        self._reason = _reason(error)
        self._tell(f"The checkpoint of step {step} could not be written: {self._reason}. Earlier ones stay.")

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self._problems.append(problem)


def _reason(error: Exception) -> str:
    return str((error.strerror if isinstance(error, OSError) else None) or error).rstrip(".")
