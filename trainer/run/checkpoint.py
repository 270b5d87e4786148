"""Checkpoints: tensors keyed by variable path, and a manifest that is written last."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import UserError

FORMAT = 1
TENSORS = "tensors.npz"
MANIFEST = "manifest.json"
INDEX = "index.json"
BFLOAT16 = tf.bfloat16.as_numpy_dtype


@dataclass(frozen=True)
class Checkpoint:
    """Hold a loaded checkpoint.

    Attributes:
        step: steps made when it was written.
        tensors: arrays by key, such as "network/model/dense/kernel".
        host_state: what host hooks stored, by hook name.
    """

    step: int
    tensors: dict[str, np.ndarray]
    host_state: dict[str, Any]


class CheckpointStore:
    """Write and read the checkpoints of one run directory.

    A checkpoint is a directory `step_<n>`; `index.json` says which one each tag ("last", "best") means. The tensors
    go to a temporary directory first and are fsynced; the manifest with their sha256 follows, then the rename, then
    the index. So whatever the index names is whole.
    """

    def __init__(self, directory: Path) -> None:
        """Work in `directory`, which is made at the first save.

        Args:
            directory: <run>/checkpoints.
        """
        self.directory = directory

    def tags(self) -> dict[str, str]:
        """Return the name of the checkpoint that each tag means.

        Raises:
            UserError: the index is damaged.
        """
        path = self.directory / INDEX
        try:
            return json.loads(path.read_text()) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}. Expected the checkpoints of a run.") from error

    def save(self, tags: set[str], step: int, tensors: Mapping[str, np.ndarray], host_state: Mapping[str, Any]) -> None:
        """Write a checkpoint, let the tags mean it, and remove those that no tag means any more.

        Args:
            tags: such as {"last", "best"}.
            step: steps made.
            tensors: arrays by key.
            host_state: JSON values by host hook.
        """
        name = f"step_{step:08d}"
        if not (self.directory / name / MANIFEST).exists():
            self._write(name, step, tensors, host_state)
        index = self.tags() | dict.fromkeys(sorted(tags), name)
        _write_synced(self.directory / (INDEX + ".tmp"), json.dumps(index, indent=2).encode())
        os.replace(self.directory / (INDEX + ".tmp"), self.directory / INDEX)
        _sync_directory(self.directory)
        for path in self.directory.iterdir():
            if path.is_dir() and path.name not in index.values():
                shutil.rmtree(path, ignore_errors=True)

    def load(self, tag: str) -> Checkpoint:
        """Return the checkpoint that a tag means, once its hash is checked.

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
        path = self.directory / tags[tag]
        try:
            manifest = json.loads((path / MANIFEST).read_text())
            content = (path / TENSORS).read_bytes()
        except (OSError, ValueError) as error:
            raise UserError(f"The checkpoint {path} cannot be read: {error}.") from error
        if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
            raise UserError(f"The checkpoint {path} is damaged: its sha256 is not the one in {MANIFEST}.")
        return Checkpoint(manifest["step"], _read_tensors(path / TENSORS, manifest["dtypes"]), manifest["host_state"])

    def _write(self, name: str, step: int, tensors: Mapping[str, np.ndarray], host_state: Mapping[str, Any]) -> None:
        temporary = self.directory / f".{name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        with (temporary / TENSORS).open("wb") as file:
            np.savez(file, allow_pickle=False, **{key: _storable(array) for key, array in tensors.items()})
            file.flush()
            os.fsync(file.fileno())
        manifest = {
            "format": FORMAT,
            "step": step,
            "sha256": hashlib.sha256((temporary / TENSORS).read_bytes()).hexdigest(),
            "dtypes": {key: str(array.dtype) for key, array in tensors.items()},
            "host_state": dict(host_state),
        }
        _write_synced(temporary / MANIFEST, json.dumps(manifest, indent=2).encode())
        _sync_directory(temporary)
        shutil.rmtree(self.directory / name, ignore_errors=True)
        os.replace(temporary, self.directory / name)
        _sync_directory(self.directory)


def _storable(array: np.ndarray) -> np.ndarray:
    """Return an array of a dtype that npz keeps; bfloat16 travels as its bits."""
    return array.view(np.uint16) if array.dtype == BFLOAT16 else array


def _read_tensors(path: Path, dtypes: Mapping[str, str]) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    return {key: array.view(BFLOAT16) if dtypes[key] == "bfloat16" else array for key, array in arrays.items()}


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
