"""The container of packed and sparse files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from hookline.trainer.errors import UserError
from hookline.trainer.files import open_file, parse_json, write_whole


def to_json(value: Any) -> str:
    """Return a value as JSON text in ASCII without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return what a JSON text holds."""
    text = text if isinstance(text, str) else text.decode("utf-8")
    return parse_json(
        text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
    )


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number is not finite")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError("a number is too large")
    return value


PACKED, SPARSE = "hookline.packed", "hookline.sparse"
"""Kinds of files."""
VERSION = "1"
DTYPES = {
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
}
MAX_HEADER = 2**22
"""Bytes: 4 MiB, some ten thousand arrays."""
MAX_RANK = 8
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
MAX_NAME = 200
PREFIX = 8
ALIGNMENT = 8
METADATA, DIGEST = "__metadata__", "sha256"
KEYS = ("format", "version", "model", DIGEST)
LOOKS = {b"PK": "a zip archive", b"\x80": "a pickle", b"\x89HDF": "an HDF5 file", b"\x93NUMPY": "a NumPy array"}
REMEDY = "Export the run again."


class DamagedError(ValueError):
    """Report what is wrong with a file, without its name."""


def write_container(path: Path, kind: str, model: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Write a file whole or not at all: under another name first, synced, then renamed."""
    path = Path(path)
    _check_ranks(tensors)
    ordered = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # so each one is aligned
    data = [_little_endian(tensors[name]) for name in ordered]
    entries, end = {}, 0
    for name, array in zip(ordered, data, strict=True):
        _check_name(name)
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": _code(array), "shape": list(array.shape), "data_offsets": [begin, end]}
    metadata = {"format": kind, "version": VERSION, "model": to_json(model)}
    digest = hashlib.sha256(_header(metadata, entries))
    for array in data:
        digest.update(_bytes(array))
    header = _header({**metadata, DIGEST: digest.hexdigest()}, entries)
    if len(header) > MAX_HEADER:
        raise ValueError(f"the header takes {len(header):,} bytes, expected {MAX_HEADER:,} at most")
    _write(path, [len(header).to_bytes(PREFIX, "little"), header, *(_bytes(array) for array in data)])


def read_container(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the model's JSON values and the read-only arrays of a file."""
    path = Path(path)
    try:
        with open_file(path, follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            header = _read_header(file, size)
            metadata, entries = _parse_header(header, kind)
            places = _place(entries, size - PREFIX - len(header))
            data = file.read(size - PREFIX - len(header))
        _check_digest(header, metadata, entries, data)
        return _parse_model(metadata["model"]), {name: _array(data, *place) for name, place in places.items()}
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", "") or "it is too large for the memory"
        raise UserError(f"{path} cannot be read: {reason}. Expected a {_word(kind)} file.") from error
    except DamagedError as error:
        raise UserError(f"{path} is not a valid {_word(kind)} file: {error} {REMEDY}") from error


def container_sizes(path: Path) -> tuple[int, int]:
    """Return the bytes of the header, with its length, and those of the arrays."""
    path = Path(path)
    try:
        with open_file(path, follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            header = PREFIX + len(_read_header(file, size))
            return header, size - header
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Expected an exported file.") from error
    except DamagedError as error:
        raise UserError(f"{path} is not a valid exported file: {error} {REMEDY}") from error


def _word(kind: str) -> str:
    return kind.rpartition(".")[2]


def _code(array: np.ndarray) -> str:
    for code, dtype in DTYPES.items():
        if array.dtype == dtype:
            return code
    raise ValueError(f"no file may hold arrays of {array.dtype}, expected one of {', '.join(DTYPES)}")


def _little_endian(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _check_name(name: str) -> None:
    if len(name) > MAX_NAME or not NAME.fullmatch(name):
        raise DamagedError(f"{name[:40]!r} names an array, expected letters, digits and _ . - with single slashes.")


def _check_ranks(tensors: Mapping[str, np.ndarray]) -> None:
    for name, array in tensors.items():
        if array.ndim > MAX_RANK:
            raise ValueError(f"array {name!r} has {array.ndim} axes, expected {MAX_RANK} at most")


def _header(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    """Return the one form of a header: spaces at its end align the arrays."""
    text = to_json({METADATA: metadata, **entries}).encode("ascii")
    return text + b" " * (-len(text) % ALIGNMENT)


def _write(path: Path, parts: list[Any]) -> None:
    try:
        write_whole(path, parts)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Expected a place that can.") from error


def _read_header(file: BinaryIO, size: int) -> bytes:
    first = file.read(PREFIX)
    for start, name in LOOKS.items():
        if first.startswith(start) and size > PREFIX and int.from_bytes(first, "little") > MAX_HEADER:
            raise DamagedError(f"it looks like {name}.")
    length = int.from_bytes(first, "little")
    if len(first) < PREFIX or length > size - PREFIX:
        raise DamagedError(f"it has {size:,} bytes, which is too short for its header.")
    if length > MAX_HEADER:
        raise DamagedError(f"its header would take {length:,} bytes, expected {MAX_HEADER:,} at most.")
    header = file.read(length)
    if len(header) != length:
        raise DamagedError("it ended while it was read.")
    return header


def _parse_header(raw: bytes, kind: str) -> tuple[dict[str, str], dict[str, Any]]:
    try:
        entries = from_json(raw)
    except ValueError as error:
        raise DamagedError("its header is not JSON.") from error
    metadata = entries.pop(METADATA, None) if isinstance(entries, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in metadata.values()):
        raise DamagedError("its header says nothing of this project.")
    _check_kind(metadata, kind)
    if _header({key: metadata[key] for key in KEYS}, entries) != raw:
        raise DamagedError("its header is not in the one form that is written.")
    return metadata, entries


def _check_kind(metadata: Mapping[str, str], kind: str) -> None:
    found = metadata.get("format", "none")
    if found != kind:
        raise DamagedError(f"its format is {found[:40]!r}, expected {kind!r}.")
    version = metadata.get("version", "none")
    if version != VERSION:
        raise DamagedError(
            f"its version is {version[:40]!r}, expected {VERSION!r}; another version of Hookline wrote it."
        )
    if set(metadata) != set(KEYS):
        raise DamagedError(f"its header says more or less than {', '.join(KEYS)}.")


def _check_digest(raw: bytes, metadata: Mapping[str, str], entries: Mapping[str, Any], data: bytes) -> None:
    found = hashlib.sha256(_header({key: metadata[key] for key in KEYS if key != DIGEST}, entries))
    found.update(data)
    if found.hexdigest() != metadata[DIGEST]:
        raise DamagedError("its SHA-256 is not the one in it, so it was changed or damaged.")


def _parse_model(text: str) -> dict[str, Any]:
    try:
        model = from_json(text)
    except ValueError as error:
        raise DamagedError("its description of the model is not JSON.") from error
    if not isinstance(model, dict):
        raise DamagedError("its description of the model is not a mapping.")
    return model


def _place(entries: Mapping[str, Any], size: int) -> dict[str, tuple[np.dtype[Any], list[int], int]]:
    """Return type, shape and first byte of each array, where they follow one another and fill the file."""
    places, end = {}, 0
    for name, entry in entries.items():
        _check_name(name)
        dtype, shape = _type_and_shape(name, entry)
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        if not _are_sizes(entry["data_offsets"]) or entry["data_offsets"] != [begin, end]:
            raise DamagedError(f"array {name!r} is not placed after the one before it, or not of its size.")
        places[name] = dtype, shape, begin
    if end != size:
        raise DamagedError(f"its arrays take {end:,} bytes, but {size:,} follow the header.")
    return places


def _type_and_shape(name: str, entry: Any) -> tuple[np.dtype[Any], list[int]]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise DamagedError(f"array {name!r} has other fields than dtype, shape and data_offsets.")
    code, shape = entry["dtype"], entry["shape"]
    if not isinstance(code, str) or code not in DTYPES:
        raise DamagedError(f"array {name!r} has type {str(code)[:20]!r}, expected one of {', '.join(DTYPES)}.")
    if not _are_sizes(shape) or len(shape) > MAX_RANK:
        raise DamagedError(f"array {name!r} has no valid shape.")
    return np.dtype(DTYPES[code]).newbyteorder("<"), shape


def _array(data: bytes, dtype: np.dtype[Any], shape: list[int], begin: int) -> np.ndarray:
    count = math.prod(shape)
    return np.frombuffer(data, dtype, count, begin).reshape(shape) if count else np.empty(shape, dtype)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(each) is int and each >= 0 for each in values)


MAX_BYTES = 2**22
"""Of the text: as much as the header of a file may have."""


def compress_json(value: Any) -> np.ndarray:
    """Return JSON values as a zlib stream."""
    text = to_json(value).encode("ascii")
    if len(text) > MAX_BYTES:
        raise ValueError(f"The text has {len(text):,} bytes. Expected {MAX_BYTES:,} at most.")
    return np.frombuffer(zlib.compress(text, level=9), np.uint8)


def expand_json(stream: np.ndarray, what: str) -> Any:
    """Return the values that `compress_json` has compressed."""
    if stream.dtype != np.uint8 or stream.ndim != 1:
        raise DamagedError(f"its {what} is not a stream of bytes.")
    expander = zlib.decompressobj()
    try:
        text = expander.decompress(stream.tobytes(), MAX_BYTES)
    except zlib.error as error:
        raise DamagedError(f"its {what} cannot be expanded ({error}).") from error
    if not expander.eof or expander.unused_data:
        raise DamagedError(f"its {what} does not end where its text of at most {MAX_BYTES:,} bytes does.")
    try:
        return from_json(text)
    except ValueError as error:
        raise DamagedError(f"its {what} cannot be read ({error}).") from error
