"""The index of TFRecord files."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from hookline.recipes.data.image_source import cache_folder, file_stamp, fingerprint, written_whole
from hookline.recipes.data.input_form import processors
from hookline.trainer.errors import ARRAY_FAULTS, UserError, did_you_mean
from hookline.trainer.input.source import HOST


@dataclass(frozen=True)
class Keys:
    """Name features: data.image_key, data.label_key and data.group_key."""

    image: str
    label: str
    group: str | None

    def as_list(self) -> list[str | None]:
        """Return the names."""
        return [self.image, self.label, self.group]

    def collected(self) -> dict[str, tuple[str, str]]:
        """Return which features an index collects: their names, and the options that set them."""
        found = {"labels": (self.label, "data.label_key")}
        return found if self.group is None else {**found, "groups": (self.group, "data.group_key")}


def parse_record(data: bytes, where: str) -> Any:
    """Return the features of a record by name."""
    try:
        return tf.train.Example.FromString(data).features.feature
    except DecodeError as error:
        raise UserError(f"{where} is not a tf.train.Example ({error}). Write the records as such.") from error


def single_value(features: Any, key: str, option: str, where: str, kinds: tuple[str, ...]) -> Any:
    """Return the one value of a feature: bytes, an integer, or, where integers are allowed, a text."""
    if key not in features:
        names = sorted(features)
        raise UserError(
            f"{where} has no feature '{key}'.{did_you_mean(key, names)} It has: {', '.join(names) or 'none'}. "
            f"Set {option}."
        )
    feature = features[key]
    kind = str(feature.WhichOneof("kind") or "no").removesuffix("_list")
    values = getattr(feature, f"{kind}_list").value if kind != "no" else []
    if kind not in kinds or len(values) != 1:
        expected = " or ".join(kinds)
        raise UserError(
            f"{where}: feature '{key}' holds {len(values)} {kind} values; expected one of {expected}. Set {option}."
        )
    if kind == "bytes" and "int64" in kinds:
        return values[0].decode(errors="backslashreplace")
    return values[0]


FORM = 1
"""Increased when the format of index files changes."""
BEFORE, AFTER = 12, 4
"""Bytes around the data of a record: its length with a checksum, and a checksum."""
BATCH = 64
DIGEST_BYTES = 8
PACKED = {b"\x1f\x8b": "GZIP", b"\x78": "ZLIB"}


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """Say where records lie, row by row: arrays [size]."""

    files: tuple[str, ...]
    file_of: np.ndarray  # position in `files`
    offsets: np.ndarray  # where the data of a record begins in its file
    lengths: np.ndarray  # bytes of data
    digests: np.ndarray  # hash of the data
    labels: np.ndarray  # integers or texts
    groups: np.ndarray | None  # likewise; None if they were not asked for

    def name(self, row: int) -> str:
        """Return what messages call a record."""
        first = int(np.searchsorted(self.file_of, self.file_of[row]))
        return f"{self.files[self.file_of[row]]}, record {row - first}"

    def read(self, row: int) -> bytes | None:
        """Return the data of a record; None if it has changed since it was indexed."""
        with open(self.files[self.file_of[row]], "rb", buffering=0) as file:
            file.seek(int(self.offsets[row]))
            data = file.read(int(self.lengths[row]))
        return data if _digest(data) == self.digests[row] else None


def index_records(files: Sequence[str], keys: Keys, cache_dir: str | None) -> RecordIndex:
    """Return the index of files, from an earlier run where none of them has changed since.

    Making it reads every record once, checks both checksums of each, and that it holds the features.
    """
    try:
        stamp = fingerprint(FORM, [file_stamp(os.path.abspath(file)) for file in files], keys.as_list())
    except OSError as error:
        raise UserError(f"'{error.filename}' cannot be read ({error.strerror}); expected a TFRecord file.") from error
    where = fingerprint([os.path.abspath(file) for file in files], keys.as_list())
    kept = cache_folder(cache_dir) / f"{Path(files[0]).stem}-{where}.index"
    arrays = _load(kept, stamp)
    if arrays is None:
        with ThreadPoolExecutor(processors()) as pool:
            parts = list(pool.map(lambda file: _index_file(file, keys), files))
        arrays = {name: _joined([part[name] for part in parts], keys, name) for name in parts[0]}
        arrays["file_of"] = np.repeat(np.arange(len(files)), [len(part["offsets"]) for part in parts])
        _keep(kept, arrays, stamp)
    return RecordIndex(tuple(files), groups=arrays.pop("groups", None), **arrays)


def _load(kept: Path, stamp: str) -> dict[str, np.ndarray] | None:
    """Return the arrays of an index file; None if it does not exist, is stale or damaged."""
    try:
        with open(kept, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive}
        return arrays if arrays.pop("stamp") == stamp else None
    except ARRAY_FAULTS:
        return None


def _keep(kept: Path, arrays: dict[str, np.ndarray], stamp: str) -> None:
    try:
        with written_whole(kept) as stream:
            np.savez(stream, allow_pickle=False, stamp=np.array(stamp), **arrays)
    except OSError as error:
        warnings.warn(
            f"'{kept.parent}' cannot hold the index of the records ({error.strerror}), so that every run makes it "
            "again. Give another data.cache_dir.",
            stacklevel=4,
        )


def _index_file(file: str, keys: Keys) -> dict[str, Any]:
    """Return the arrays and lists of one file by name."""
    offsets: list[int] = []
    lengths: list[int] = []
    digests: list[int] = []
    values: dict[str, list[Any]] = {name: [] for name in keys.collected()}
    start = 0
    try:
        with tf.init_scope(), tf.device(HOST):
            for batch in tf.data.TFRecordDataset(file).batch(BATCH):
                for data in batch.numpy():
                    where = f"'{file}', record {len(offsets)}"
                    features = parse_record(data, where)
                    single_value(features, keys.image, "data.image_key", where, ("bytes",))
                    for name, (key, option) in keys.collected().items():
                        values[name].append(single_value(features, key, option, where, ("bytes", "int64")))
                    offsets.append(start + BEFORE)
                    lengths.append(len(data))
                    digests.append(_digest(data))
                    start += BEFORE + len(data) + AFTER
    except tf.errors.OpError as error:
        raise _broken(file, error) from error
    if start != os.path.getsize(file):  # TensorFlow takes a few trailing bytes for the end of the file
        raise _cut_off(file, start)
    if not offsets:
        raise UserError(f"'{file}' holds no record; expected a TFRecord file with examples. Remove it.")
    integers = {"offsets": np.array(offsets, np.int64), "lengths": np.array(lengths, np.int64)}
    return {**integers, "digests": np.array(digests, np.uint64), **values}


def _joined(parts: list[Any], keys: Keys, name: str) -> np.ndarray:
    """Return the values of all files in one array: integers, or texts."""
    if name not in keys.collected():
        return np.concatenate(parts)
    values = [value for part in parts for value in part]
    if len({type(value) for value in values}) > 1:
        raise UserError(
            f"{keys.collected()[name][1]} names numbers in some records and texts in others; expected one kind."
        )
    return np.array(values, np.int64 if isinstance(values[0], int) else None)


def _broken(file: str, error: tf.errors.OpError) -> UserError:
    """Return the error for a file whose records cannot be read."""
    place = re.search(r"(truncated|corrupted) record at (\d+)", error.message)
    if place is None:
        reason = error.message.split(";")[-1].strip()
        return UserError(f"'{file}' cannot be read ({reason}); expected a TFRecord file.")
    with open(file, "rb") as stream:
        beginning = stream.read(2)
    for signature, kind in PACKED.items():
        if place[2] == "0" and beginning.startswith(signature):
            return UserError(f"'{file}' is compressed ({kind}), and cannot be read at random. Write it uncompressed.")
    if place[1] == "truncated":
        return _cut_off(file, int(place[2]))
    if place[2] == "0":
        return UserError(
            f"'{file}' is not a TFRecord file: its first checksum is wrong. Give others, or write it again."
        )
    return UserError(f"'{file}' is damaged: what is at byte {place[2]} has a wrong checksum. Copy or write it again.")


def _cut_off(file: str, place: int) -> UserError:
    return UserError(
        f"'{file}' is cut off: its last record is not whole, from byte {place} of {os.path.getsize(file)} on; expected "
        "a whole TFRecord file. Copy or write it again."
    )


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest(), "little")
