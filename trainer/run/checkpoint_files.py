"""The files of one checkpoint, written whole and read with checks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from hookline.trainer import files
from hookline.trainer.errors import UserError
from hookline.trainer.files import is_own_folder, open_file, open_new, sync_folder

NAME = re.compile(r"step_(\d{8,})(_\d+)?")
LEFTOVER = re.compile(r"\.(step_\d{8,}(_\d+)?\.(tmp|gone)|index\.json\.(\d+\.)?tmp)")
DAMAGED = "damaged_"
LAST = "last"
"""The tag of the checkpoint to resume from."""


def step_of(name: str) -> int:
    """Return the step in the name of a checkpoint; -1 where the text is no such name."""
    match = NAME.fullmatch(name)
    return int(match.group(1)) if match else -1


def checkpoint_names(directory: Path) -> set[str]:
    """Return the names of the checkpoints, sound or not."""
    return {path.name for path in _paths(directory) if step_of(path.name) >= 0 and is_own_folder(path)}


def set_aside(directory: Path) -> list[Path]:
    """Return the damaged checkpoints that were set aside."""
    return sorted(path for path in _paths(directory) if path.name.startswith(DAMAGED))


def leftovers(directory: Path) -> list[Path]:
    """Return the leftovers of killed writers."""
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
"""The largest JSON file of a checkpoint that is written or read: 64 MiB."""


class DamagedError(UserError):
    """Report a file of a checkpoint that differs from what was written."""


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and return when it is on the disk."""
    with open_new(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(temporary: Path, path: Path) -> None:
    """Give something its final name, and return when the name is on the disk."""
    os.replace(temporary, path)
    sync_folder(path.parent)


def make_synced(path: Path) -> None:
    """Make a directory, and those above it, and return when their names are on the disk."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def hide_directories(paths: Iterable[Path]) -> None:
    """Rename directories before they are removed, so that none is seen half removed."""
    hidden = [(path, path.with_name(f".{path.name}.gone")) for path in paths]
    for path, gone in hidden:
        os.replace(path, gone)
    if hidden:
        sync_folder(hidden[0][1].parent)


def to_json(value: Any, what: str) -> bytes:
    """Return a value as JSON."""
    content = json.dumps(value, indent=1).encode()
    if len(content) > MAX_JSON_BYTES:
        raise UserError(f"{what} takes {len(content):,} bytes as JSON. Expected {MAX_JSON_BYTES:,} at most.")
    return content


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        return files.read_json(path, MAX_JSON_BYTES)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DamagedError(f"{path} is damaged: it is not JSON.") from error


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NATIVE = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
STORED = {**NATIVE, "bfloat16": np.dtype("uint16")}
"""The dtype in the file by the name of an array's own; bfloat16 travels as its bits."""
NPY = b"\x93NUMPY\x01\x00"
MAX_HEADER = 4096
"""Bytes of the header of an array in the file."""

Specs = dict[str, dict[str, Any]]


def describe_tensors(tensors: Mapping[str, np.ndarray]) -> Specs:
    """Return {"dtype": name, "shape": list} of each array."""
    for key, array in tensors.items():
        if array.dtype.name not in STORED:
            raise UserError(f"'{key}' has the dtype {array.dtype}. Expected one of: {', '.join(sorted(STORED))}.")
    return {key: {"dtype": array.dtype.name, "shape": list(array.shape)} for key, array in tensors.items()}


def write_tensors(file: IO[bytes], tensors: Mapping[str, np.ndarray]) -> None:
    """Write arrays."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, array in tensors.items():
            native = np.asarray(array, array.dtype.newbyteorder("="), order="C")
            stored = native.view(STORED[array.dtype.name])
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, version=(1, 0), allow_pickle=False)


def read_tensors(path: Path, specs: Specs) -> dict[str, np.ndarray]:
    """Return the arrays of a file, in no more memory than the file has bytes, whatever it claims."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = _checked_members(path, archive, specs)
            return {key: _read(path, archive, members[key], key, spec) for key, spec in specs.items()}
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}.") from error
    except DamagedError:
        raise
    except (zipfile.BadZipFile, ValueError, TypeError, KeyError, EOFError, RuntimeError) as error:
        raise DamagedError(f"{path} is damaged: {error!s:.120}.") from error


def tensors_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return a sha256 of arrays with their names, dtypes and shapes: two runs with one digest have the same bits."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        array = np.ascontiguousarray(tensors[key])
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)  # without a copy
    return digest.hexdigest()


def _checked_members(path: Path, archive: zipfile.ZipFile, specs: Mapping[str, Any]) -> dict[str, zipfile.ZipInfo]:
    """Return the members by key: those of the manifest, none compressed, together no larger than the file."""
    infos = archive.infolist()
    members = {info.filename.removesuffix(".npy"): info for info in infos}
    if len(members) != len(infos) or {info.filename for info in infos} != {f"{key}.npy" for key in specs}:
        raise DamagedError(f"{path} is damaged: its arrays are not those of its manifest.")
    for key, info in members.items():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise DamagedError(f"{path} is damaged: '{key}' is compressed.")
    if sum(info.file_size for info in infos) > path.stat().st_size:
        raise DamagedError(f"{path} is damaged: its arrays claim more bytes than the file has.")
    return members


def _read(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str, spec: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = spec["dtype"], tuple(spec["shape"])
    stored = STORED[dtype]
    expected = f"{{'descr': '{stored.str}', 'fortran_order': False, 'shape': {shape!r}, }}"
    with archive.open(info) as member:
        found = _header(member)
        if found != expected or info.file_size != member.tell() + math.prod(shape) * stored.itemsize:
            raise DamagedError(
                f"{path} is damaged: '{key}' is {found!r:.120} in {info.file_size:,} bytes. "
                f"Its manifest says {dtype} of shape {list(shape)!s:.80}."
            )
        array = np.empty(shape, stored)
        left = array.reshape(-1).view(np.uint8).data
        while left and (count := member.readinto(left[: 2**24])):  # type: ignore[attr-defined]  # of a ZipExtFile
            left = left[count:]
        if left or member.read(1):  # reading to the end compares the checksum
            raise DamagedError(f"{path} is damaged: '{key}' has another length than it says.")
    return array.view(BFLOAT16) if dtype == "bfloat16" else array


def _header(member: IO[bytes]) -> str:
    """Return the header of an array as text, to be compared and never interpreted; "" if there is none."""
    start = member.read(len(NPY) + 2)
    length = int.from_bytes(start[len(NPY) :], "little")
    if not start.startswith(NPY) or length > MAX_HEADER:
        return ""
    return member.read(length).decode("latin1").rstrip()
