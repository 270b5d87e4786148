"""The container of packed and sparse files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hookline.trainer.errors import UserError
from hookline.trainer.files import open_file, parse_json, write_whole


def to_json(value: Any) -> str:
    """Return a value as JSON text in ASCII without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """Return what a JSON text holds: finite numbers, whole ones of at most 64 bits."""
    return parse_json(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number is not finite")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError("a number is too large")
    return value


PACKED, SPARSE = "hookline.packed", "hookline.sparse"  # kinds of files
VERSION = "1"
DTYPES = {
    "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
MAX_TEXT = 2**22  # bytes of the header, and of a compressed text: some ten thousand arrays
MAX_RANK = 8
PREFIX = 8
ALIGNMENT = 8
METADATA, DIGEST = "__metadata__", "sha256"
KEYS = ("format", "version", "model", DIGEST)
REMEDY = "Export the run again."


def require(holds: bool, problem: str) -> None:
    """Refuse a file unless a condition holds."""
    if not holds:
        raise UserError(problem)


def write_container(path: Path, kind: str, model: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Write a file whole or not at all."""
    ordered = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # so each one is aligned
    codes = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
    entries, content, end = {}, [], 0
    for name in ordered:
        array, code = tensors[name], codes.get(tensors[name].dtype.newbyteorder("="))
        if code is None or array.ndim > MAX_RANK:
            known = f"{', '.join(DTYPES)} with {MAX_RANK} axes at most"
            raise ValueError(f"no file may hold {name!r}, {array.dtype} with {array.ndim} axes, expected {known}")
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
        little_endian = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        content.append(little_endian.reshape(-1).view(np.uint8).data)
    metadata = {"format": kind, "version": VERSION, "model": to_json(model)}
    header = _header({**metadata, DIGEST: _digest(metadata, entries, content)}, entries)
    if len(header) > MAX_TEXT:
        raise ValueError(f"the header takes {len(header):,} bytes, expected {MAX_TEXT:,} at most")
    try:
        write_whole(Path(path), [len(header).to_bytes(PREFIX, "little"), header, *content])
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Expected a place that can.") from error


def read_container(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the model's JSON values and the read-only arrays of a file."""
    word = kind.rpartition(".")[2]
    try:
        with open_file(path, follow=True) as file:
            size = os.fstat(file.fileno()).st_size
            header = _read_header(file, size)
            metadata, entries = _parse_header(header, kind)
            places = _place(entries, size - PREFIX - len(header))
            data = file.read(size - PREFIX - len(header))
        own = {key: metadata[key] for key in KEYS if key != DIGEST}
        is_whole = _digest(own, entries, [data]) == metadata[DIGEST]
        require(is_whole, "its SHA-256 is not the one in it, so it was changed or damaged.")
        model = _mapping(metadata["model"], "description of the model")
        return model, {name: np.ndarray(shape, dtype, data, begin) for name, (dtype, shape, begin) in places.items()}
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", "") or "it is too large for the memory"
        raise UserError(f"{path} cannot be read: {reason}. Expected a {word} file.") from error
    except UserError as error:
        raise UserError(f"{path} is not a valid {word} file: {error} {REMEDY}") from error


def container_sizes(path: Path) -> tuple[int, int]:
    """Return the bytes of the header of a file that was just written, with its length, and those of the arrays."""
    with open_file(path, follow=True) as file:
        size = os.fstat(file.fileno()).st_size
        header = PREFIX + len(_read_header(file, size))
    return header, size - header


def _header(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    """Return the one form of a header: spaces at its end align the arrays."""
    text = to_json({METADATA: metadata, **entries}).encode("ascii")
    return text + b" " * (-len(text) % ALIGNMENT)


def _digest(metadata: Mapping[str, str], entries: Mapping[str, Any], content: Sequence[bytes | memoryview]) -> str:
    """Return the digest of all that a file holds beside it."""
    found = hashlib.sha256(_header(metadata, entries))
    for part in content:
        found.update(part)
    return found.hexdigest()


def _read_header(file: BinaryIO, size: int) -> bytes:
    first = file.read(PREFIX)
    length = int.from_bytes(first, "little")
    has_room = len(first) == PREFIX and length <= size - PREFIX
    require(has_room, f"it has {size:,} bytes, which is too short for its header.")
    require(length <= MAX_TEXT, f"its header would take {length:,} bytes, expected {MAX_TEXT:,} at most.")
    return file.read(length)


def _mapping(text: str | bytes, what: str) -> dict[str, Any]:
    """Return the mapping that a JSON text holds."""
    try:
        found = from_json(text)
    except ValueError as error:
        raise UserError(f"its {what} is not JSON.") from error
    if not isinstance(found, dict):
        raise UserError(f"its {what} is not a mapping.")
    return found


def _parse_header(raw: bytes, kind: str) -> tuple[dict[str, str], dict[str, Any]]:
    entries = _mapping(raw, "header")
    metadata = entries.pop(METADATA, None)
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in metadata.values()):
        raise UserError("its header says nothing of this project.")
    found, version = metadata.get("format", "none"), metadata.get("version", "none")
    require(found == kind, f"its format is {found[:40]!r}, expected {kind!r}.")
    wanted = f"expected {VERSION!r}; another version of Hookline wrote it."
    require(version == VERSION, f"its version is {version[:40]!r}, {wanted}")
    require(set(metadata) == set(KEYS), f"its header says more or less than {', '.join(KEYS)}.")
    is_written_so = _header({key: metadata[key] for key in KEYS}, entries) == raw
    require(is_written_so, "its header is not in the one form that is written.")
    return metadata, entries


def _place(entries: Mapping[str, Any], size: int) -> dict[str, tuple[np.dtype[Any], list[int], int]]:
    """Return type, shape and first byte of each array, where they follow one another and fill the file."""
    places, end = {}, 0
    for name, entry in entries.items():
        what = f"array {name[:40]!r}"
        has_all = isinstance(entry, dict) and set(entry) == {"dtype", "shape", "data_offsets"}
        require(has_all, f"{what} has other fields than dtype, shape and data_offsets.")
        code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_known = isinstance(code, str) and code in DTYPES
        require(is_known, f"{what} has type {str(code)[:20]!r}, expected one of {', '.join(DTYPES)}.")
        require(_are_sizes(shape) and len(shape) <= MAX_RANK, f"{what} has no valid shape.")
        dtype = np.dtype(DTYPES[code]).newbyteorder("<")
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        is_next = _are_sizes(offsets) and offsets == [begin, end]
        require(is_next, f"{what} is not placed after the one before it, or not of its size.")
        places[name] = dtype, shape, begin
    require(end == size, f"its arrays take {end:,} bytes, but {size:,} follow the header.")
    return places


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(each) is int and each >= 0 for each in values)


def compress_json(value: Any) -> np.ndarray:
    """Return JSON values as a zlib stream."""
    text = to_json(value).encode("ascii")
    if len(text) > MAX_TEXT:
        raise ValueError(f"The text has {len(text):,} bytes. Expected {MAX_TEXT:,} at most.")
    return np.frombuffer(zlib.compress(text, level=9), np.uint8)


def expand_json(stream: np.ndarray, what: str) -> dict[str, Any]:
    """Return the mapping that `compress_json` has compressed."""
    require(stream.dtype == np.uint8 and stream.ndim == 1, f"its {what} is not a stream of bytes.")
    expander = zlib.decompressobj()
    try:
        text = expander.decompress(stream.tobytes(), MAX_TEXT)
    except zlib.error as error:
        raise UserError(f"its {what} cannot be expanded ({error}).") from error
    is_whole = expander.eof and not expander.unused_data
    require(is_whole, f"its {what} does not end where its text of at most {MAX_TEXT:,} bytes does.")
    return _mapping(text, what)
