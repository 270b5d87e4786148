"""Which checkpoints there are: manifests, tags and the index."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline.trainer.errors import UserError
from hookline.trainer.files import open_file, write_whole
from hookline.trainer.run.checkpoint_files import (
    LAST,
    DamagedError,
    Specs,
    checkpoint_names,
    read_json,
    step_of,
    to_json,
    write_synced,
)

FORMAT = 3
TENSORS = "tensors.npz"
STATE = "state.json"
MANIFEST = "manifest.json"
DIGEST = "manifest_sha256"
FIELDS = {"step": int, "number": int, "tags": list, "files": dict, "tensors": dict, "environment": dict}


@dataclass(frozen=True)
class Manifest:
    """Hold what a manifest says."""

    path: Path
    step: int
    number: int  # counts the checkpoints of a run in the order in which they were written
    tags: list[str]  # that it was written for
    files: dict[str, dict[str, Any]]  # {"sha256": hex, "bytes": int} of each
    tensors: Specs
    environment: dict[str, Any]  # what the bits may depend on, as it was then


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a checkpoint whose files are written: it commits them."""
    content = {"format": FORMAT, **content, "files": {name: _fingerprint(path / name) for name in (TENSORS, STATE)}}
    content = json.loads(json.dumps(content))  # as it will be read, so that its digest is the same
    write_synced(path / MANIFEST, to_json({**content, DIGEST: _digest(content)}, "The manifest of a checkpoint"))


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint."""
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
            "that wrote it, or train again."
        )
    if digest is None or not _is_manifest(content):
        raise damaged
    return Manifest(path, **{name: content[name] for name in FIELDS})


def check_files(manifest: Manifest) -> None:
    """Compare the files of a checkpoint with its manifest, without loading them."""
    for name, expected in manifest.files.items():
        try:
            found = _fingerprint(manifest.path / name)
        except OSError as error:
            raise DamagedError(f"{manifest.path / name} cannot be read: {error.strerror}.") from error
        if found != expected:
            raise DamagedError(f"{manifest.path / name} is damaged: its sha256 is not the one in {MANIFEST}.")


def _is_manifest(content: Mapping[str, Any]) -> bool:
    return (
        all(type(content.get(name)) is kind for name, kind in FIELDS.items())
        and min(content["step"], content["number"]) >= 0
        and all(isinstance(tag, str) for tag in content["tags"])
        and content["files"].keys() == {TENSORS, STATE}
    )


def _fingerprint(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": size}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


INDEX = "index.json"


@dataclass(frozen=True)
class Index:
    """Hold what the tags mean."""

    tags: dict[str, str] = field(default_factory=dict)  # the name of a checkpoint by tag
    kept: tuple[str, ...] = ()  # those that are or were "last" and stay, from the oldest to the newest
    number: int = 0  # of the newest checkpoint that it knows of

    @property
    def names(self) -> set[str]:
        """Return the names of all checkpoints that stay."""
        return {*self.tags.values(), *self.kept}

    def with_checkpoint(self, manifest: Manifest) -> Index:
        """Return the index after a checkpoint was written, which replaces one of the same step."""
        name, kept = manifest.path.name, self.kept
        if LAST in manifest.tags:
            kept = (*(each for each in kept if step_of(each) != manifest.step), name)
        return Index({**self.tags, **dict.fromkeys(manifest.tags, name)}, kept, manifest.number)


def read_index(directory: Path) -> Index | None:
    """Return what `index.json` says; None if there is none."""
    path = directory / INDEX
    if not path.exists():
        return None
    content = read_json(path)
    try:
        index = Index(dict(content["tags"]), tuple(content["kept"]), int(content["number"]))
        sound = all(step_of(name) >= 0 for name in index.names)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise DamagedError(f"{path} is damaged: it is not what was written.")
    return index


def read_manifests(directory: Path) -> list[Manifest]:
    """Return the manifests that can be read, from the oldest checkpoint to the newest."""
    found = []
    for name in sorted(checkpoint_names(directory)):
        with suppress(DamagedError):
            found.append(read_manifest(directory / name))
    return sorted(found, key=lambda manifest: manifest.number)


def write_index(directory: Path, index: Index) -> None:
    """Replace `index.json` at once."""
    content = {"tags": dict(sorted(index.tags.items())), "kept": list(index.kept), "number": index.number}
    write_whole(directory / INDEX, to_json(content, INDEX))


def complete_index(index: Index | None, manifests: Sequence[Manifest], names: set[str]) -> Index:
    """Return an index without missing checkpoints, and with all that were written after it."""
    known = index or Index()  # without an index, the manifests say all
    tags = {tag: name for tag, name in known.tags.items() if name in names}
    lost = known.tags.keys() - tags.keys()
    again = {tag: manifest.path.name for manifest in manifests for tag in manifest.tags if tag in lost}
    found = Index({**tags, **again}, tuple(name for name in known.kept if name in names), known.number)
    for manifest in manifests:
        if manifest.number > found.number:  # a kill between checkpoint and index leaves one that the index lacks
            found = found.with_checkpoint(manifest)
    return found
