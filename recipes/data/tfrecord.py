"""Images from TFRecord files, with random access.

Each record is a `tf.train.Example`. The first run reads all records and verifies their checksums; their offsets and
labels are kept in an index, which later runs use while the files' sizes and modification times are unchanged. A record
is checked against the index whenever it is read.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from hookline.recipes.data.image_source import (
    EncodedImages,
    cache_folder,
    check_holding,
    file_stamp,
    fingerprint,
    image_data,
)
from hookline.recipes.data.images import UnreadableImage, decode_image, fit_pixels, image_form
from hookline.recipes.data.splits import PARTS, check_split, complete, count_classes
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import ARRAY_FAULTS, UserError, check_choice, did_you_mean, unknown_name
from hookline.trainer.files import write_whole
from hookline.trainer.input.data import HOST, Data
from hookline.trainer.input.preparation import Preparation

FORM = 1  # increased when the format of index files changes
BEFORE, AFTER = 12, 4  # bytes before a record's data (length and checksum) and after it (checksum)
BATCH = 64


def _check(**options: Any) -> None:
    """Check what can be checked without reading the files."""
    _raw_shape(options["encoding"], options["shape"])
    image_form(1, options["fit"], 3)
    check_holding(options)
    check_split(options["split"], group_key=("group", options["group_key"]))
    _files(options)


@prechecked(_check)
def tfrecord(
    *,
    path: str | list[str],
    validation_path: str | list[str] | None = None,
    test_path: str | list[str] | None = None,
    image_key: str = "image/encoded",
    label_key: str = "image/class/label",
    encoding: str = "image",
    shape: list[int] | None = None,
    first_label: int = 0,
    classes: int | None = None,
    class_names: list[str] | None = None,
    image_size: int | list[int] | None = 96,
    fit: str = "crop",
    channels: int = 3,
    cache: str = "memory",
    cache_dir: str | None = None,
    corrupt: str = "stop",
    validation_share: float = 0.1,
    test_share: float = 0.2,
    split: str = "stratified",
    group_key: str | None = None,
    seed: int = 0,
) -> Data:
    """Return the images of TFRecord files, all resized to one size."""
    options = dict(locals())
    raw_shape = _raw_shape(encoding, shape)
    form = image_form(list(raw_shape[:2]) if image_size is None and raw_shape else image_size, fit, channels)
    files = _files(options)
    index = _index_records([file for each in files.values() for file in each], options)
    labels, names, count = _labels(index.labels, options)
    keys = index.digests.view(np.int64)
    ends = np.cumsum([len(each) for each in files.values()])
    split_of = np.searchsorted(ends, index.file_of, side="right")
    parts = {name: np.flatnonzero(split_of == number) for number, name in enumerate(files)}
    return image_data(
        Path(files["train"][0]).stem,
        EncodedImages(labels, partial(_load, index, image_key, form, raw_shape), index.name, form),
        complete(parts, labels, options, groups=index.groups, keys=keys),
        options,
        class_names=names,
        classes=count,
        remedy=None if classes else "Check data.label_key and data.first_label, or set data.classes if intended.",
        settings=[index.files, form.shape, form.fit, image_key, label_key, group_key, raw_shape],
        checked=("train",),
        stamps=lambda rows: index.digests[rows].tolist(),
    )


def _load(index: RecordIndex, key: str, form: Preparation, shape: tuple[int, ...] | None, row: int) -> np.ndarray:
    """Return the image of a record: an encoded image, or raw pixels of the given shape."""
    try:
        data = index.read(row)
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from error
    if _digest(data) != index.digests[row]:
        raise UnreadableImage("it has changed since this run indexed it")
    image = tf.train.Example.FromString(data).features.feature[key].bytes_list.value[0]
    if shape is None:
        return decode_image(image, form)
    if len(image) != np.prod(shape):
        raise UnreadableImage(f"it has {len(image)} bytes, which does not match data.shape {list(shape)}")
    return fit_pixels(np.frombuffer(image, np.uint8).reshape(shape), form)


def _raw_shape(encoding: str, shape: Sequence[int] | None) -> tuple[int, ...] | None:
    check_choice("data.encoding", encoding, ("image", "raw"))
    if encoding == "image":
        return None
    sides = tuple(shape or ())
    if len(sides) != 3 or min(sides) < 1 or sides[2] not in (1, 3):
        raise UserError(f"data.shape={shape!r} received. Expected height, width, channels (1 or 3), such as [32,32,3].")
    return sides


def _files(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of each split that has any."""
    names = zip(PARTS, ("path", "validation_path", "test_path"), strict=True)
    files = {part: _matching(f"data.{name}", options[name]) for part, name in names if options[name] is not None}
    seen: dict[str, str] = {}
    for name, each in files.items():
        for file in each:
            real = os.path.realpath(file)
            if real in seen:
                raise UserError(f"'{file}' is in {seen[real]} and in {name}. Expected each file in one of them.")
            seen[real] = name
    return files


def _matching(option: str, patterns: str | Sequence[str]) -> list[str]:
    """Return the files that match names or glob patterns."""
    found: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        expanded = os.path.expanduser(pattern)
        if os.path.isdir(expanded):
            raise UserError(f"{option} '{pattern}' is a folder; expected files, such as '{pattern}/*.tfrecord'.")
        matching = [expanded] if os.path.exists(expanded) else sorted(glob.glob(expanded, recursive=True))
        if not matching:
            raise UserError(f"{option} '{pattern}' matches no file. Working directory: {Path.cwd()}.")
        found |= dict.fromkeys(matching)
    return list(found)


def _labels(found: np.ndarray, options: Mapping[str, Any]) -> tuple[np.ndarray, tuple[str, ...], int]:
    """Return labels starting at 0, int64 [size], the names of the classes, and the number of classes."""
    first_label, classes = options["first_label"], options["classes"]
    names = tuple(str(name) for name in options["class_names"] or ())
    if found.dtype.kind == "U":  # strings are class names: the given ones, or all that occur
        names = names or tuple(np.unique(found).tolist())
        place = {name: label for label, name in enumerate(names)}
        labels = np.array([place.get(name, -1) for name in found.tolist()], np.int64)
        if labels.min() < 0:
            raise unknown_name("class in the records", found[labels < 0][0], names)
    else:
        labels = found - first_label
    where = f"data.label_key, less data.first_label={first_label}"
    count = count_classes({where: labels}, len(names) if classes is None and len(names) > 1 else classes)
    return labels, names, count


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """Locations, labels and groups of records: arrays [size], one value per row."""

    files: tuple[str, ...]
    file_of: np.ndarray  # position in `files`
    offsets: np.ndarray  # byte at which a record's data begins in its file
    lengths: np.ndarray  # bytes of data
    digests: np.ndarray  # hash of the data
    labels: np.ndarray  # integers or strings
    groups: np.ndarray | None = None  # integers or strings; None without `group_key`

    def name(self, row: int) -> str:
        """Return the name of a record for messages."""
        first = int(np.searchsorted(self.file_of, self.file_of[row]))
        return f"{self.files[self.file_of[row]]}, record {row - first}"

    def read(self, row: int) -> bytes:
        """Return the data of a record as the file currently has it."""
        with open(self.files[self.file_of[row]], "rb", buffering=0) as file:
            file.seek(int(self.offsets[row]))
            return file.read(int(self.lengths[row]))


def _index_records(files: Sequence[str], options: Mapping[str, Any]) -> RecordIndex:
    """Return the index of files: that of an earlier run if none has changed, else a new one of verified records."""
    keys = {option: options[option] for option in ("image_key", "label_key", "group_key")}
    try:
        stamp = fingerprint(FORM, [file_stamp(os.path.abspath(file)) for file in files], keys)
    except OSError as error:
        raise UserError(f"'{error.filename}' cannot be read ({error.strerror}); expected a TFRecord file.") from error
    where = fingerprint([os.path.abspath(file) for file in files], keys)
    kept = cache_folder(options["cache_dir"]) / f"{Path(files[0]).stem}-{where}.index"
    try:
        with open(kept, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive}
    except ARRAY_FAULTS:  # no index, or a damaged one
        arrays = {}
    if arrays.pop("stamp", None) != stamp:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(lambda file: _index_file(file, keys), files))
        for name in ("labels", "groups") if keys["group_key"] is not None else ("labels",):
            _check_one_kind({part[name].dtype.kind == "U" for part in parts}, name)
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        arrays["file_of"] = np.repeat(np.arange(len(files)), [len(part["offsets"]) for part in parts])
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, stamp=np.array(stamp), **arrays)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_whole(kept, content.getvalue())
        except OSError as error:
            held = f"'{kept.parent}' cannot hold the index of the records ({error.strerror})"
            warnings.warn(f"{held}: give another data.cache_dir.", stacklevel=3)
    return RecordIndex(tuple(files), **arrays)


def _index_file(file: str, keys: Mapping[str, str | None]) -> dict[str, np.ndarray]:
    """Return the arrays of one file by name; labels and groups are integers or strings."""
    found: dict[str, list[Any]] = {"offsets": [], "lengths": [], "digests": [], "labels": []}
    if keys["group_key"] is not None:
        found["groups"] = []
    start = 0
    try:
        with tf.init_scope(), tf.device(HOST):
            for batch in tf.data.TFRecordDataset(file).batch(BATCH):
                for data in batch.numpy():
                    where = f"'{file}', record {len(found['offsets'])}"
                    try:
                        features = tf.train.Example.FromString(data).features.feature
                    except DecodeError as error:
                        raise UserError(f"{where} is not a tf.train.Example ({error}). Write it as such.") from error
                    _single_value(features, keys, "image_key", where, ("bytes",))
                    found["labels"].append(_single_value(features, keys, "label_key", where, ("bytes", "int64")))
                    if "groups" in found:
                        found["groups"].append(_single_value(features, keys, "group_key", where, ("bytes", "int64")))
                    found["offsets"].append(start + BEFORE)
                    found["lengths"].append(len(data))
                    found["digests"].append(_digest(data))
                    start += BEFORE + len(data) + AFTER
    except tf.errors.OpError as error:
        place = re.search(r"(truncated|corrupted) record at \d+", error.message)
        reason = place[0] if place else error.message.split(";")[-1].strip()
        raise UserError(f"'{file}' cannot be read ({reason}); expected a whole TFRecord file, uncompressed.") from error
    if start != os.path.getsize(file):  # TensorFlow treats a few trailing bytes as the end of the file
        raise UserError(f"'{file}' is cut off behind byte {start}; expected whole records. Copy or write it again.")
    if not found["offsets"]:
        raise UserError(f"'{file}' holds no record; expected a TFRecord file with examples. Remove it.")
    for name in ("labels", "groups"):
        _check_one_kind({isinstance(each, str) for each in found.get(name, ())}, name)
    return {name: np.array(each, np.uint64 if name == "digests" else None) for name, each in found.items()}


def _check_one_kind(kinds: set[bool], name: str) -> None:
    """Refuse integers mixed with strings: they would silently become names of classes."""
    if len(kinds) > 1:
        raise UserError(
            f"The records hold integers and texts as {name}; expected one of them. Set data.{name[:-1]}_key."
        )


def _single_value(
    features: Any, keys: Mapping[str, str | None], option: str, where: str, kinds: tuple[str, ...]
) -> bytes | int | str:
    """Return the single value of a feature: bytes, an integer, or, where integers are allowed, a string."""
    key = keys[option]
    if key not in features:
        names = sorted(features)
        raise UserError(
            f"{where} has no feature '{key}'.{did_you_mean(str(key), names)} It has: {', '.join(names) or 'none'}. "
            f"Set data.{option}."
        )
    feature = features[key]
    kind = str(feature.WhichOneof("kind") or "no").removesuffix("_list")
    values = getattr(feature, f"{kind}_list").value if kind != "no" else []
    if kind not in kinds or len(values) != 1:
        raise UserError(
            f"{where}: '{key}' holds {len(values)} {kind} values; expected one {' or '.join(kinds)}. Set data.{option}."
        )
    if kind == "bytes" and "int64" in kinds:
        return values[0].decode(errors="backslashreplace")
    return values[0]


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
