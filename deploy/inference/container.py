"""The container format of packed and sparse files.

A file contains the SHA-256 of its content, which detects damage. A forged file may raise any error while it is read,
which `reading` reports in one line; nothing in it is executed, and the memory that it claims is bounded.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hookline.trainer.errors import UserError
from hookline.trainer.files import open_file, parse_json, write_whole

PACKED, SPARSE = "hookline.packed", "hookline.sparse"  # kinds of files
VERSION = "1"
DTYPES = {
    "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
MAX_TEXT = 2**22  # most bytes of the header, and of an expanded text: some ten thousand arrays
PREFIX = 8
ALIGNMENT = 8
METADATA, DIGEST = "__metadata__", "sha256"
REMEDY = "Export the run again."


def require(holds: bool, problem: str) -> None:
    """Refuse a file unless a condition holds."""
    if not holds:
        raise UserError(problem)


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Convert any error while a file is read to a `UserError` of one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Expected a {what}.") from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError, zlib.error) as error:
        problem = str(error) if isinstance(error, UserError) else f"{type(error).__name__} ({error!s:.100})."
        raise UserError(f"{path} is not a valid {what}: {problem} {REMEDY}") from error


def to_json(value: Any) -> str:
    """Return a value as JSON text in ASCII without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def write_container(path: Path, kind: str, model: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Write a file atomically."""
    ordered = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # keeps each one aligned
    codes = {np.dtype(dtype): code for code, dtype in DTYPES.items()}
    entries, content, end = {}, [], 0
    for name in ordered:
        array = tensors[name]
        begin, end = end, end + array.nbytes
        code = codes[array.dtype.newbyteorder("=")]
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [begin, end]}
        little_endian = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        content.append(little_endian.reshape(-1).view(np.uint8).data)
    metadata = {"format": kind, "version": VERSION, "model": to_json(model)}
    header = _header({**metadata, DIGEST: _digest(metadata, entries, content)}, entries)
    write_whole(Path(path), [len(header).to_bytes(PREFIX, "little"), header, *content])


def read_container(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the model's JSON values and the read-only arrays of a file."""
    with reading(path, f"{kind.rpartition('.')[2]} file"):
        with open_file(path, follow=True) as file:
            entries, data = parse_json(_read_header(file)), file.read()
        metadata = entries.pop(METADATA, {})
        found, version = metadata.get("format"), metadata.get("version")
        require(found == kind, f"its format is {found!r:.40}, expected {kind!r}.")
        require(version == VERSION, f"its version is {version!r:.40}, expected {VERSION!r}: another Hookline wrote it.")
        own = {key: metadata[key] for key in ("format", "version", "model")}
        is_sound = _digest(own, entries, [data]) == metadata[DIGEST]
        require(is_sound, "its SHA-256 does not match: the file was modified or damaged.")
        return parse_json(metadata["model"]), {name: _array(data, entry) for name, entry in entries.items()}


def _array(data: bytes, entry: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(DTYPES[entry["dtype"]]).newbyteorder("<")
    return np.ndarray(entry["shape"], dtype, data, entry["data_offsets"][0])


def container_sizes(path: Path) -> tuple[int, int]:
    """Return the bytes of the header, with its length prefix, and of the arrays in a file that was just written."""
    with path.open("rb") as file:
        header = PREFIX + len(_read_header(file))
    return header, path.stat().st_size - header


def _header(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    """Return the canonical header, padded with spaces to align the arrays."""
    text = to_json({METADATA: metadata, **entries}).encode("ascii")
    return text + b" " * (-len(text) % ALIGNMENT)


def _digest(metadata: Mapping[str, str], entries: Mapping[str, Any], content: Sequence[bytes | memoryview]) -> str:
    """Return the digest of everything in a file except the digest itself."""
    found = hashlib.sha256(_header(metadata, entries))
    for part in content:
        found.update(part)
    return found.hexdigest()


def _read_header(file: BinaryIO) -> bytes:
    length = int.from_bytes(file.read(PREFIX), "little")
    require(length <= MAX_TEXT, f"its header would take {length:,} bytes, expected {MAX_TEXT:,} at most.")
    return file.read(length)


def compress_json(value: Any) -> np.ndarray:
    """Return JSON values as a zlib stream."""
    return np.frombuffer(zlib.compress(to_json(value).encode("ascii"), level=9), np.uint8)


def expand_json(stream: np.ndarray) -> Any:
    """Return the values that `compress_json` compressed."""
    expander = zlib.decompressobj()
    text = expander.decompress(stream.tobytes(), MAX_TEXT)
    require(expander.eof, f"a text in it has more than {MAX_TEXT:,} bytes, or is cut off.")
    return parse_json(text)
