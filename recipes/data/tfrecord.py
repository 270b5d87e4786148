"""Images from TFRecord files, read at random.

Each record is a `tf.train.Example`. The first run reads all of them once and verifies their checksums; their offsets
and labels are kept in an index, which later runs use as long as the files' sizes and times are unchanged. A record is
compared with the index whenever it is read.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hookline.recipes.data.digits import pixel_preparation
from hookline.recipes.data.hold_out import check_group_option, check_groups, check_split, hold_out
from hookline.recipes.data.image_formats import UnreadableImage
from hookline.recipes.data.image_source import PEAK, EncodedImages, Holding, open_images
from hookline.recipes.data.images import ImageForm, decode_image, fit_pixels, image_form
from hookline.recipes.data.tfrecord_index import Keys, RecordIndex, index_records, parse_record, single_value
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import check_labels, is_whole_number
from hookline.trainer.input.data import Data, Split

ENCODINGS = ("image", "raw")
SPLITS = ("train", "validation", "test")


def _check(
    path: Any,
    validation_path: Any,
    test_path: Any,
    encoding: str,
    shape: Any,
    fit: Any,
    cache: str,
    cache_dir: str | None,
    corrupt: str,
    split: str,
    group_key: Any,
) -> None:
    """Check what can be checked without reading the files."""
    _raw_shape(encoding, shape)
    image_form(1, fit, 3)
    Holding(cache, cache_dir, corrupt)
    check_split(split)
    check_group_option(split, "group_key", group_key)
    _files({"train": path, "validation": validation_path, "test": test_path})


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

    Args:
        path: files to train on: names, which may hold * and ?, one or several. Not compressed.
        validation_path: likewise to validate on; null holds a share of the training examples out.
        test_path: likewise to test on.
        image_key: the feature with the image, one value of bytes.
        label_key: the feature with the class: one integer, or one text, which is then the name of the class.
        encoding: "image" for JPEG, PNG, BMP or GIF, detected from its content; "raw" for pixels of one byte per value.
        shape: height, width and channels of raw pixels.
        first_label: the smallest integer that names a class: 0, or 1 if 0 means "none".
        classes: number of classes; null: as many as the integers reach. If given, some may lack training examples.
        class_names: what each class is called, by integer; null for none.
        image_size: height and width in pixels, or one number for both; null for those of `shape`.
        fit: "crop" resizes the shorter side and cuts the middle out; "stretch" changes the proportions.
        channels: 3 for colour, 1 for grey.
        cache: "memory" decodes all images once, before training; "disk" once into a file; "none" for every batch.
        cache_dir: folder of index and pixels; null for `hookline` in the user's cache folder.
        corrupt: images that cannot be decoded: "stop", or "skip" them with a warning that names them.
        validation_share: share, or number, of the training examples held out without a `validation_path`.
        test_share: likewise for the test.
        split: how: "stratified", "random", "group" or "hash" (of the record's content); see `hold_out`.
        group_key: the feature with the group, one integer or text.
        seed: of the shares, 0 or more; not the run's seed.

    Returns:
        Data with "inputs" float32 [n, height, width, channels] in [-1, 1] and "targets" int64 [n].
    """
    return _open(dict(locals()), Holding(cache, cache_dir, corrupt))


def _open(options: dict[str, Any], holding: Holding) -> Data:
    """Return the data that the arguments of `tfrecord` describe."""
    raw_shape = _raw_shape(options["encoding"], options["shape"])
    size = options["image_size"]
    form = image_form(list(raw_shape[:2]) if size is None and raw_shape else size, options["fit"], options["channels"])
    check_split(options["split"])
    check_group_option(options["split"], "group_key", options["group_key"])
    keys = _keys(options["image_key"], options["label_key"], options["group_key"])
    paths = {"train": options["path"], "validation": options["validation_path"], "test": options["test_path"]}
    files = _files(paths)
    index = index_records([file for each in files.values() for file in each], keys, holding.cache_dir)
    classes = options["classes"]
    labels, names, count = _labels(index.labels, options["first_label"], classes, options["class_names"])
    shares = {"validation": options["validation_share"], "test": options["test_share"]}
    parts = _split(index, files, shares, options["seed"], options["split"], labels)
    _check_classes(parts["train"], labels, names, count, strict=classes is None)
    images = EncodedImages(labels, _Records(index, keys.image, form, raw_shape).load, index.name, form)
    name = Path(files["train"][0]).stem
    settings = [index.files, form.shape, form.fit, keys.as_list(), raw_shape]
    source, kept = open_images(images, holding, name, settings, lambda: index.digests.tolist())
    if len(kept) < len(labels):
        parts = {each: np.searchsorted(kept, np.intersect1d(rows, kept)) for each, rows in parts.items()}
        _check_classes(kept[parts["train"]], labels, names, count, strict=classes is None)
    splits = {each: Split(each, source, rows) for each, rows in parts.items()}
    return Data(
        name,
        **splits,
        input_shape=form.shape,
        classes=count,
        class_names=names,
        preparation=pixel_preparation(form.shape, PEAK, fit=form.fit),
    )


@dataclass(frozen=True, eq=False)
class _Records:
    """Read images of records: pixels of a shape, or an encoded image where the shape is None."""

    index: RecordIndex
    key: str
    form: ImageForm
    shape: tuple[int, ...] | None

    def load(self, row: int) -> np.ndarray:
        """Return an image in its form; raises `UnreadableImage`."""
        try:
            data = self.index.read(row)
        except OSError as error:
            raise UnreadableImage(error.strerror or str(error)) from error
        if data is None:
            raise UnreadableImage("it has changed since this run indexed it")
        where = self.index.name(row)
        image = single_value(parse_record(data, where), self.key, "data.image_key", where, ("bytes",))
        if self.shape is None:
            return decode_image(image, self.form)
        if len(image) != np.prod(self.shape):
            raise UnreadableImage(f"it has {len(image)} bytes, and data.shape {list(self.shape)}")
        return fit_pixels(np.frombuffer(image, np.uint8).reshape(self.shape), self.form)


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


def _files(paths: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of each split that has some."""
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
    if classes is not None and (not is_whole_number(classes) or classes < 2):
        raise UserError(f"Received data.classes={classes!r}; expected an integer of 2 or more, or null.")
    names = tuple(str(name) for name in class_names or ())
    if found.dtype.kind == "U":
        known = names or tuple(np.unique(found).tolist())
        place = {name: label for label, name in enumerate(known)}
        labels = np.array([place.get(name, -1) for name in found.tolist()], np.int64)
        if labels.min() < 0:
            raise unknown_name("class in the records", found[labels < 0][0], known)
        names = known
    else:
        labels = found - first_label
    count = classes or len(names) or int(labels.max()) + 1
    if names and len(names) != count:
        raise UserError(f"Received data.classes={count} and {len(names)} names of classes; expected the same number.")
    check_labels(labels, count, f"data.label_key, less data.first_label={first_label}")
    if count < 2:
        raise UserError("The records hold one class; expected 2 or more. Check data.label_key.")
    return labels, names, count


def _split(
    index: RecordIndex,
    files: Mapping[str, Sequence[str]],
    shares: Mapping[str, float],
    seed: int,
    split: str,
    labels: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return rows by split; splits without files are taken from the training examples."""
    ends = np.cumsum([0, *(len(each) for each in files.values())])
    own = {
        name: np.flatnonzero((index.file_of >= start) & (index.file_of < stop))
        for name, start, stop in zip(files, ends[:-1], ends[1:], strict=True)
    }
    train = own["train"]
    held_out = hold_out(
        labels[train],
        {name: share for name, share in shares.items() if name not in own},
        split=split,
        seed=seed,
        groups=lambda: None if index.groups is None else index.groups[train],
        keys=lambda: index.digests[train].view(np.int64),
        mend="set data.group_key.",
    )
    taken = {name: train[rows] for name, rows in held_out.items()}
    parts = {name: taken[name] if name in taken else own[name] for name in SPLITS}
    if index.groups is not None:
        check_groups(parts, index.groups)
    return parts


def _check_classes(rows: np.ndarray, labels: np.ndarray, names: Sequence[str], count: int, *, strict: bool) -> None:
    lacking = np.flatnonzero(np.bincount(labels[rows], minlength=count) == 0)
    if not lacking.size:
        return
    first = names[lacking[0]] if names else lacking[0]
    message = f"{lacking.size} of {count} classes have no example to train on, the first is '{first}'"
    if strict:
        raise UserError(
            f"{message}; expected one or more of each. Check data.label_key and data.first_label, or set data.classes "
            "where this is meant."
        )
    warnings.warn(f"{message}: no network can learn them.", stacklevel=3)
