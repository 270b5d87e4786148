"""One checkpoint on disk: a directory of tensors, state and manifest, whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.files import open_new, remove, sync_folder
from trainer.run.checkpoint_disk import (
    DamagedError,
    make_synced,
    read_json,
    replace_synced,
    write_synced,
)
from trainer.run.checkpoint_manifest import STATE, TENSORS, Manifest, check_files, write_manifest
from trainer.run.checkpoint_tensors import describe_tensors, read_tensors, write_tensors
from trainer.run.checkpoint_writer import Snapshot


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
    """Write a checkpoint under a temporary name, sync it, then give it its own.

    Args:
        path: directory of the checkpoint; must not exist.
        snapshot: what it will hold.
        number: of the checkpoint.
        environment: JSON values.

    Raises:
        OSError: the disk is full, or cannot be written to; nothing of the checkpoint stays.
        UserError: an array of a dtype that cannot be kept.
    """
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
    """Return a checkpoint, once its files are checked.

    Args:
        manifest: of the checkpoint.

    Raises:
        DamagedError: a file is not what was written.
    """
    check_files(manifest)
    state = read_json(manifest.path / STATE)
    if not isinstance(state, dict):
        raise DamagedError(f"{manifest.path / STATE} is damaged: it holds no state.")
    tensors = read_tensors(manifest.path / TENSORS, manifest.tensors)
    return Checkpoint(manifest.step, tensors, state, manifest.environment)
