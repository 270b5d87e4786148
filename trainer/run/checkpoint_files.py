"""Checkpoint files, written atomically and verified when read: arrays, manifests, and the index of their tags."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from hookline.trainer import files
from hookline.trainer.errors import ARRAY_FAULTS, UserError, check_choice
from hookline.trainer.files import is_own_folder, open_file, open_new, remove, sync_folder, write_whole

NAME = re.compile(r"step_(\d{8,})(_\d+)?")
LEFTOVER = re.compile(r"\.(step_\d{8,}(_\d+)?\.(tmp|gone)|index\.json\.(\d+\.)?tmp)")
DAMAGED = "damaged_"
LAST = "last"
"""The tag of the checkpoint to resume from."""


def step_of(name: str) -> int:
    """Return the step in the name of a checkpoint; -1 for any other name."""
    match = NAME.fullmatch(name)
    return int(match.group(1)) if match else -1


def checkpoint_names(directory: Path) -> set[str]:
    """Return the names of the checkpoints, sound or damaged."""
    return {path.name for path in _paths(directory) if step_of(path.name) >= 0 and is_own_folder(path)}


def set_aside(directory: Path) -> list[Path]:
    """Return the damaged checkpoints that were set aside."""
    return sorted(path for path in _paths(directory) if path.name.startswith(DAMAGED))


def leftovers(directory: Path) -> list[Path]:
    """Return the temporary files and directories that killed writers left behind."""
    return sorted(path for path in _paths(directory) if LEFTOVER.fullmatch(path.name))


def unused(directory: Path, name: str) -> Path:
    """Return a path that is not taken: the name, or the name with a number."""
    path, count = directory / name, 1
    while os.path.lexists(path):
        count += 1
        path = directory / f"{name}_{count}"
    return path


def _paths(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if is_own_folder(directory) else []


MAX_JSON_BYTES = 2**26
"""The largest JSON file of a checkpoint that is read: 64 MiB."""


class DamagedError(UserError):
    """Report a file of a checkpoint that differs from what was written."""


def replace_synced(temporary: Path, path: Path) -> None:
    """Rename a file or directory to its final name, and sync the rename to disk."""
    os.replace(temporary, path)
    sync_folder(path.parent)


def make_synced(path: Path) -> None:
    """Create a directory and its parents, and sync their entries to disk."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def read_json(path: Path) -> Any:
    """Return the contents of a JSON file; raise a `DamagedError` if it cannot be read."""
    try:
        return files.read_json(path, MAX_JSON_BYTES)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: it is not JSON.") from error


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
STORED = {**{name: np.dtype(name) for name in NAMES.split()}, "bfloat16": np.dtype("uint16")}
"""The dtype in the file by the name of the array's dtype; bfloat16 is stored as its bits."""

Specs = dict[str, dict[str, Any]]


def describe_tensors(tensors: Mapping[str, np.ndarray]) -> Specs:
    """Return {"dtype": name, "shape": list} of each array."""
    for key, array in tensors.items():
        check_choice(f"dtype of '{key}'", array.dtype.name, STORED)
    return {key: {"dtype": array.dtype.name, "shape": list(array.shape)} for key, array in tensors.items()}


def write_tensors(file: IO[bytes], tensors: Mapping[str, np.ndarray]) -> None:
    """Write arrays as an uncompressed .npz file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:  # np.savez refuses an array called "file"
        for key, array in tensors.items():
            stored = np.asarray(array, order="C").view(STORED[array.dtype.name])
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, version=(1, 0), allow_pickle=False)


def read_tensors(path: Path, specs: Specs) -> dict[str, np.ndarray]:
    """Return the arrays of a file, using no more memory than the file has bytes, whatever its headers claim."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            _check_members(path, archive, specs)
            return {key: _read(path, archive, key, spec) for key, spec in specs.items()}
    except DamagedError:
        raise
    except ARRAY_FAULTS as error:
        reason = getattr(error, "strerror", None) or error
        raise DamagedError(f"{path} cannot be read or is damaged: {reason!s:.120}.") from error


def tensors_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return a sha256 of arrays with their names, dtypes and shapes: equal digests mean bit-identical arrays."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        array = np.ascontiguousarray(tensors[key])
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # without a copy
    return digest.hexdigest()


def _check_members(path: Path, archive: zipfile.ZipFile, specs: Specs) -> None:
    """Refuse members that differ from the manifest, compressed members, and a total size beyond that of the file."""
    infos = archive.infolist()
    if sorted(info.filename for info in infos) != sorted(f"{key}.npy" for key in specs):
        raise DamagedError(f"{path} is damaged: its arrays are not those of its manifest.")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise DamagedError(f"{path} is damaged: '{info.filename}' is compressed.")
    if sum(info.file_size for info in infos) > path.stat().st_size:
        raise DamagedError(f"{path} is damaged: its arrays claim more bytes than the file has.")


def _read(path: Path, archive: zipfile.ZipFile, key: str, spec: Mapping[str, Any]) -> np.ndarray:
    """Return an array, after comparing its header, without parsing it, with the one that the manifest implies."""
    dtype, shape = STORED[spec["dtype"]], tuple(spec["shape"])
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    content = archive.read(f"{key}.npy")  # to its end, which verifies its checksum
    start = header.tell()
    if content[:start] != header.getvalue() or len(content) != start + math.prod(shape) * dtype.itemsize:
        raise DamagedError(f"{path} is damaged: '{key}' is not {spec['dtype']} of shape {list(shape)!s:.80}.")
    array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.view(BFLOAT16) if spec["dtype"] == "bfloat16" else array


FORMAT = 3
TENSORS = "tensors.npz"
STATE = "state.json"
MANIFEST = "manifest.json"
DIGEST = "manifest_sha256"
FIELDS = {"step": int, "number": int, "tags": list, "files": dict, "tensors": dict, "environment": dict}


@dataclass(frozen=True)
class Manifest:
    """Hold the contents of a manifest."""

    path: Path
    step: int
    number: int  # counts the checkpoints of a run in the order in which they were written
    tags: list[str]  # for which it was written
    files: dict[str, dict[str, Any]]  # {"sha256": hex, "bytes": int} of each
    tensors: Specs
    environment: dict[str, Any]  # what the bits may depend on, at the time of writing


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a checkpoint, which commits its other files; these must be written already."""
    content = {"format": FORMAT, **content, "files": {name: _fingerprint(path / name) for name in (TENSORS, STATE)}}
    content = json.loads(json.dumps(content))  # as it will be read, so that its digest is the same
    write_whole(path / MANIFEST, json.dumps({**content, DIGEST: _digest(content)}, indent=1))


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
        raise UserError(f"The checkpoint {path} is in format {number}, not {FORMAT}: use the version that wrote it.")
    if digest is None or not _is_manifest(content):
        raise damaged
    return Manifest(path, **{name: content[name] for name in FIELDS})


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
    """Hold the checkpoints that tags refer to and those that are kept."""

    tags: dict[str, str]  # the name of a checkpoint by tag
    kept: tuple[str, ...]  # those kept that are or were "last", oldest first

    @property
    def names(self) -> set[str]:
        """Return the names of all checkpoints to keep."""
        return {*self.tags.values(), *self.kept}


def index_of(manifests: Sequence[Manifest], keep_last: int) -> Index:
    """Return the index of manifests given oldest first: each tag refers to the newest checkpoint written for it."""
    tags: dict[str, str] = {}
    last: dict[int, str] = {}  # by step
    for manifest in manifests:
        tags |= dict.fromkeys(manifest.tags, manifest.path.name)
        if LAST in manifest.tags:
            last.pop(manifest.step, None)  # it replaces one of the same step
            last[manifest.step] = manifest.path.name
    return Index(tags, tuple(last.values())[-keep_last:])


def read_index(directory: Path) -> Index | None:
    """Return the contents of `index.json`; None if it is missing. It is only for people and other programs."""
    path = directory / INDEX
    if not path.exists():
        return None
    content = read_json(path)
    try:
        index = Index(dict(content["tags"]), tuple(content["kept"]))
        sound = all(step_of(name) >= 0 for name in index.names)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise DamagedError(f"{path} is damaged: it is not what was written.")
    return index


def read_manifests(
    directory: Path, damaged: Callable[[Path, DamagedError], None] = lambda path, error: None
) -> list[Manifest]:
    """Return the readable manifests, oldest checkpoint first; call `damaged` for the others."""
    found = []
    for name in sorted(checkpoint_names(directory)):
        try:
            found.append(read_manifest(directory / name))
        except DamagedError as error:
            damaged(directory / name, error)
    return sorted(found, key=lambda manifest: manifest.number)


def write_index(directory: Path, index: Index, number: int) -> None:
    """Replace `index.json` atomically; `number` is that of the newest checkpoint."""
    content = {"tags": dict(sorted(index.tags.items())), "kept": list(index.kept), "number": number}
    write_whole(directory / INDEX, json.dumps(content, indent=1))


@dataclass(frozen=True)
class Snapshot:
    """Hold the contents of a checkpoint to be written."""

    tags: frozenset[str]
    step: int
    tensors: dict[str, np.ndarray]
    state: str


@dataclass(frozen=True)
class Checkpoint:
    """Hold a loaded checkpoint."""

    step: int
    tensors: dict[str, np.ndarray]  # by key, such as "network/model/dense/kernel"
    state: dict[str, Any]  # JSON values
    environment: dict[str, Any]  # what the bits may depend on, when the checkpoint was written


def write_checkpoint(path: Path, snapshot: Snapshot, number: int, environment: Mapping[str, Any]) -> None:
    """Write a checkpoint under a temporary name, sync it, then rename it."""
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
        write_whole(temporary / STATE, snapshot.state)
        write_manifest(temporary, content)
        sync_folder(temporary)
        replace_synced(temporary, path)
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk would stay full
        raise


def read_checkpoint(manifest: Manifest) -> Checkpoint:
    """Return a checkpoint, after comparing its files with its manifest."""
    for name, expected in manifest.files.items():
        try:
            found = _fingerprint(manifest.path / name)
        except OSError as error:
            raise DamagedError(f"{manifest.path / name} cannot be read: {error.strerror}.") from error
        if found != expected:
            raise DamagedError(f"{manifest.path / name} is damaged: its sha256 is not the one in {MANIFEST}.")
    state = read_json(manifest.path / STATE)
    if not isinstance(state, dict):
        raise DamagedError(f"{manifest.path / STATE} is damaged: it holds no state.")
    tensors = read_tensors(manifest.path / TENSORS, manifest.tensors)
    return Checkpoint(manifest.step, tensors, state, manifest.environment)
