"""Images from TFRecord files, read at random.

Each record is a `tf.train.Example`. The first run reads all of them once and verifies their checksums; their offsets
and labels are kept in an index, which later runs use as long as the files' sizes and times are unchanged. A record is
compared with the index whenever it is read.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hookline.recipes.data.hold_out import check_group_option, complete
from hookline.recipes.data.image_source import EncodedImages, Holding, image_data
from hookline.recipes.data.images import ImageForm, UnreadableImage, decode_image, fit_pixels, image_form
from hookline.recipes.data.targets import count_classes, number_names
from hookline.recipes.data.tfrecord_index import Keys, RecordIndex, index_records, parse_record, single_value
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.input.data import Data

ENCODINGS = ("image", "raw")


def _check(**options: Any) -> None:
    """Check what can be checked without reading the files."""
    _raw_shape(options["encoding"], options["shape"])
    image_form(1, options["fit"], 3)
    Holding(options["cache"], options["cache_dir"], options["corrupt"])
    check_group_option(options["split"], "group_key", options["group_key"])
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
    """Return images of TFRecord files, all brought to one size.

    The arguments are explained in `configs/data/tfrecord.yaml`.
    """
    return _open(dict(locals()), Holding(cache, cache_dir, corrupt))


def _open(options: dict[str, Any], holding: Holding) -> Data:
    """Return the data that the arguments of `tfrecord` describe."""
    raw_shape = _raw_shape(options["encoding"], options["shape"])
    size = options["image_size"]
    form = image_form(list(raw_shape[:2]) if size is None and raw_shape else size, options["fit"], options["channels"])
    check_group_option(options["split"], "group_key", options["group_key"])
    keys = _keys(options["image_key"], options["label_key"], options["group_key"])
    files = _files(options)
    index = index_records([file for each in files.values() for file in each], keys, holding.cache_dir)
    classes = options["classes"]
    labels, names, count = _labels(index.labels, options["first_label"], classes, options["class_names"])
    parts = complete(
        _own_rows(index, files),
        labels,
        {"validation": options["validation_share"], "test": options["test_share"]},
        split=options["split"],
        seed=options["seed"],
        groups=index.groups,
        keys=index.digests.view(np.int64),
    )
    return image_data(
        Path(files["train"][0]).stem,
        EncodedImages(labels, partial(_load, index, keys.image, form, raw_shape), index.name, form),
        parts,
        holding,
        class_names=names,
        classes=count,
        remedy=None
        if classes
        else "Check data.label_key and data.first_label, or set data.classes where this is meant.",
        settings=[index.files, form.shape, form.fit, keys.as_list(), raw_shape],
        checked=("train",),
        stamps=lambda rows: index.digests[rows].tolist(),
    )


def _load(index: RecordIndex, key: str, form: ImageForm, shape: tuple[int, ...] | None, row: int) -> np.ndarray:
    """Return the image of a record, which is encoded, or pixels of a shape."""
    try:
        data = index.read(row)
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from error
    if data is None:
        raise UnreadableImage("it has changed since this run indexed it")
    where = index.name(row)
    image = single_value(parse_record(data, where), key, "data.image_key", where, ("bytes",))
    if shape is None:
        return decode_image(image, form)
    if len(image) != np.prod(shape):
        raise UnreadableImage(f"it has {len(image)} bytes, and data.shape {list(shape)}")
    return fit_pixels(np.frombuffer(image, np.uint8).reshape(shape), form)


def _raw_shape(encoding: str, shape: Any) -> tuple[int, ...] | None:
    if encoding not in ENCODINGS:
        raise unknown_name("data.encoding", encoding, ENCODINGS)
    if encoding == "image":
        if shape is not None:
            raise UserError(
                f"Received data.shape={shape} with data.encoding=image, whose files tell their shape; expected "
                "data.shape=null, or data.encoding=raw."
            )
        return None
    sides = list(shape) if isinstance(shape, list | tuple) else []
    if len(sides) != 3 or not all(is_whole_number(side) and side > 0 for side in sides) or sides[2] not in (1, 3):
        raise UserError(
            f"Received data.shape={shape!r} with data.encoding=raw; expected height, width and channels (1 or 3), such "
            "as [32,32,3]."
        )
    return tuple(sides)


def _keys(image_key: Any, label_key: Any, group_key: Any) -> Keys:
    for option, key in (("image_key", image_key), ("label_key", label_key), ("group_key", group_key)):
        if not isinstance(key, str) and not (key is None and option == "group_key"):
            raise UserError(f"Received data.{option}={key!r}; expected the name of a feature, such as image/encoded.")
    return Keys(image_key, label_key, group_key)


def _files(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of each split that has some."""
    paths = {"train": options["path"], "validation": options["validation_path"], "test": options["test_path"]}
    files = {name: _matching(name, each) for name, each in paths.items() if each is not None}
    seen: dict[str, str] = {}
    for name, each in files.items():
        for file in each:
            real = os.path.realpath(file)
            if real in seen:
                raise UserError(
                    f"'{file}' is in {seen[real]} and in {name}; expected each file in one of data.path, "
                    "data.validation_path and data.test_path. Change the names."
                )
            seen[real] = name
    return files


def _matching(name: str, patterns: Any) -> list[str]:
    option = "data.path" if name == "train" else f"data.{name}_path"
    listed = patterns if isinstance(patterns, list | tuple) else [patterns]
    if not listed or not all(isinstance(each, str) and each.strip() for each in listed):
        raise UserError(f"Received {option}={patterns!r}; expected names of TFRecord files, such as train-*.tfrecord.")
    found: list[str] = []
    for pattern in listed:
        expanded = os.path.expanduser(pattern)
        if os.path.isdir(expanded):
            raise UserError(f"{option} '{pattern}' is a folder; expected files, such as '{pattern}/*.tfrecord'.")
        matching = [expanded] if os.path.exists(expanded) else sorted(glob.glob(expanded, recursive=True))
        if not matching:
            raise UserError(
                f"{option} '{pattern}' matches no file; expected TFRecord files. Working directory: {Path.cwd()}."
            )
        found += [file for file in matching if file not in found]
    return found


def _labels(
    found: np.ndarray, first_label: Any, classes: Any, class_names: Sequence[Any] | None
) -> tuple[np.ndarray, tuple[str, ...], int]:
    """Return labels int64 [size] from 0, the names of the classes, and how many there are."""
    if not is_whole_number(first_label):
        raise UserError(f"Received data.first_label={first_label!r}; expected an integer, mostly 0 or 1.")
    names = tuple(str(name) for name in class_names or ())
    labels, names = number_names(found, names) if found.dtype.kind == "U" else (found - first_label, names)
    where = f"data.label_key, less data.first_label={first_label}"
    count = count_classes({where: labels}, len(names) if classes is None and len(names) > 1 else classes)
    if names and len(names) != count:
        raise UserError(f"Received data.classes={count} and {len(names)} names of classes; expected the same number.")
    return labels, names, count


def _own_rows(index: RecordIndex, files: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """Return the rows of each split that has files."""
    ends = np.cumsum([0, *(len(each) for each in files.values())])
    return {
        name: np.flatnonzero((index.file_of >= start) & (index.file_of < stop))
        for name, start, stop in zip(files, ends[:-1], ends[1:], strict=True)
    }
