"""The manifest of a checkpoint: the sha256 of its files and its own. It is written last, and commits them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import UserError
from trainer.files import open_file
from trainer.run.checkpoint_disk import DamagedError, read_json, to_json, write_synced

FORMAT = 3
TENSORS = "tensors.npz"
STATE = "state.json"
MANIFEST = "manifest.json"
DIGEST = "manifest_sha256"


@dataclass(frozen=True)
class Manifest:
    """Hold what a manifest says.

    Attributes:
        path: directory of the checkpoint.
        step: steps made when it was written.
        number: counts the checkpoints of a run in the order of their writing.
        tags: that it was written for.
        files: {"sha256": hex, "bytes": int} of each file.
        tensors: {"dtype": name, "shape": list} of each array.
        environment: what the bits may depend on, as it was when the checkpoint was written.
    """

    path: Path
    step: int
    number: int
    tags: tuple[str, ...]
    files: dict[str, dict[str, Any]]
    tensors: Any
    environment: dict[str, Any]


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a checkpoint whose files are written: it commits them.

    Args:
        path: directory of the checkpoint.
        content: JSON values: "step", "number", "tags", "tensors", "environment".
    """
    content = {"format": FORMAT, **content, "files": {name: _fingerprint(path / name) for name in (TENSORS, STATE)}}
    content = json.loads(json.dumps(content))  # as it will be read, so that its digest is the same
    write_synced(path / MANIFEST, to_json({**content, DIGEST: _digest(content)}, "The manifest of a checkpoint"))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Args:
        path: directory of the checkpoint.

    Raises:
        DamagedError: it is missing, or is not what was written.
        UserError: it is of another version of the format.
    """
    content = read_json(path / MANIFEST)
    damaged = DamagedError(f"{path / MANIFEST} is damaged: it is not what was written.")
    if not isinstance(content, dict):
        raise damaged
    digest, number = content.pop(DIGEST, None), content.get("format")
    if digest is not None and digest != _digest(content):
        raise damaged
    if type(number) is int and number != FORMAT:
        raise UserError(
            f"The checkpoint {path} is in format {number}. Expected format {FORMAT}: use the version of this project "
            "that wrote it, or train anew."
        )
    if digest is None or not _is_manifest(content):
        raise damaged
    return Manifest(
        path,
        content["step"],
        content["number"],
        tuple(content["tags"]),
        content["files"],
        content["tensors"],
        content["environment"],
    )


def check_files(manifest: Manifest) -> None:
    """Compare the files of a checkpoint with its manifest, without loading them.

    Args:
        manifest: of the checkpoint.

    Raises:
        DamagedError: a file is missing, cut off or changed; names it.
    """
    for name, expected in manifest.files.items():
        try:
            found = _fingerprint(manifest.path / name)
        except OSError as error:
            raise DamagedError(f"{manifest.path / name} cannot be read: {error.strerror}.") from error
        if found["bytes"] != expected["bytes"]:
            raise DamagedError(
                f"{manifest.path / name} is damaged: it has {found['bytes']:,} bytes, {expected['bytes']:,} expected."
            )
        if found != expected:
            raise DamagedError(f"{manifest.path / name} is damaged: its sha256 is not the one in {MANIFEST}.")


def _is_manifest(content: Mapping[str, Any]) -> bool:
    files, tags = content.get("files"), content.get("tags")
    return (
        all(type(content.get(name)) is int and content[name] >= 0 for name in ("format", "step", "number"))
        and isinstance(tags, list)
        and all(isinstance(tag, str) for tag in tags)
        and isinstance(content.get("environment"), dict)
        and isinstance(files, dict)
        and files.keys() == {TENSORS, STATE}
        and all(isinstance(each, dict) and type(each.get("bytes")) is int for each in files.values())
    )


def _fingerprint(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": size}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
