"""Sources of images: in memory, in a cache file, or decoded for every batch."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import tensorflow as tf

from hookline.recipes.data.array_files import NpyRows, open_npy
from hookline.recipes.data.images import FORMATS, UnreadableImage, described
from hookline.recipes.data.input_form import TASKS, HostRows, check_fits, map_in_chunks, transform_of
from hookline.recipes.data.splits import PARTS, check_every_class
from hookline.trainer.errors import UserError, check_choice, user_path
from hookline.trainer.files import write_whole
from hookline.trainer.input.data import ArraySource, Data, Source, Split
from hookline.trainer.input.preparation import Preparation

WINDOW_BYTES = 2**26  # bytes of pixels that are decoded before they are written
REMEDY = f"expected a whole {FORMATS}. Replace or remove what is damaged, or set data.corrupt=skip."
DECODER = 2  # increased when decoding gives different pixels, or the format of cache files changes


def cache_folder(cache_dir: str | None) -> Path:
    """Return the folder of cache files."""
    if cache_dir is not None:
        return user_path(cache_dir, "data.cache_dir")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hookline"


def fingerprint(*values: Any) -> str:
    """Return 32 hexadecimal digits that change if any value does."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def file_stamp(path: str | Path) -> list[Any]:
    """Return values that identify a file's content: path, size and modification time."""
    status = os.stat(path)
    return [str(path), status.st_size, status.st_mtime_ns]


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Images that are not decoded yet."""

    labels: np.ndarray  # int64 [size], the class of each
    load: Callable[[int], np.ndarray]  # uint8 of the form's shape, or raises UnreadableImage; called by several threads
    name: Callable[[int], str]  # location of an image, for messages
    form: Preparation

    @property
    def bytes(self) -> int:
        """Return the memory that all images take, at one byte per value."""
        return len(self.labels) * math.prod(self.form.shape)

    def of(self, rows: np.ndarray) -> EncodedImages:
        """Return the images of some rows."""
        load, name = (lambda place: self.load(int(rows[place]))), (lambda place: self.name(int(rows[place])))
        return EncodedImages(self.labels[rows], load, name, self.form)


def check_holding(options: Mapping[str, Any]) -> None:
    """Check the options "cache" and "corrupt"."""
    for name, known in (("cache", ("memory", "disk", "none")), ("corrupt", ("stop", "skip"))):
        check_choice(f"data.{name}", options[name], known)


def image_data(
    name: str,
    images: EncodedImages,
    parts: Mapping[str, np.ndarray],
    options: Mapping[str, Any],
    *,
    class_names: Sequence[str],
    classes: int,
    remedy: str | None,
    settings: Any,
    stamps: Callable[[np.ndarray], Any],
    checked: Sequence[str] = PARTS,
    row_name: Callable[[int], str] | None = None,
) -> Data:
    """Return the images of all parts from one source, without those that cannot be decoded.

    A part is an array of rows of `images`; `options` are "cache", "cache_dir" and "corrupt". Classes missing from a
    checked part cause a warning, or an error if it is the training part and there is a `remedy`. A cache file is valid
    for the same `settings` and the same stamps of its rows.
    """

    def check(parts: Mapping[str, np.ndarray]) -> None:
        check_every_class({each: images.labels[parts[each]] for each in checked}, classes, class_names, remedy=remedy)

    check(parts)
    rows = np.sort(np.concatenate(list(parts.values())))
    source, faults = _open(images.of(rows), options, name, settings, lambda: stamps(rows))
    report_faults(faults, lambda row: images.name(int(rows[row])), options["corrupt"])
    if faults:
        parts = {each: np.setdiff1d(of, rows[list(faults)]) for each, of in parts.items()}
        check(parts)
    form, named = images.form, None if row_name is None else lambda row: row_name(int(rows[row]))
    return Data(
        name,
        **{each: Split(each, source, np.searchsorted(rows, of), named) for each, of in parts.items()},
        input_shape=form.shape,
        classes=classes,
        class_names=tuple(class_names),
        preparation=form,
    )


def _open(
    images: EncodedImages, options: Mapping[str, Any], name: str, settings: Any, stamps: Callable[[], Any]
) -> tuple[Source, dict[int, str]]:
    """Return a source of the images, and by row why some cannot be decoded; these are black or never read."""
    transform, specs = transform_of(images.form), {"inputs": tf.TensorSpec(images.form.shape, tf.uint8)}
    faults: dict[int, str] = {}
    if options["cache"] == "memory":
        size, form, done = len(images.labels), images.form, 0
        what = f"The set of {size} images of {form.shape[0]} x {form.shape[1]} pixels"
        check_fits(images.bytes, what, "Set data.cache=disk or none, or a smaller data.image_size.")
        pixels = np.empty([size, *form.shape], np.uint8)
        for part in _decoded(images, faults):
            pixels[done : done + len(part)] = part
            done += len(part)
        return ArraySource({"inputs": pixels, "targets": images.labels}, transform), faults
    if options["cache"] == "none":
        if options["corrupt"] == "skip":
            deque(_decoded(images, faults), maxlen=0)
        pool = ThreadPoolExecutor(os.cpu_count())  # shared by all batches

        def load(row: int) -> np.ndarray:
            try:
                return images.load(row)
            except UnreadableImage as error:
                raise UserError(f"{described(images.name(row), error)}; {REMEDY}") from error

        def read(rows: np.ndarray) -> dict[str, np.ndarray]:
            return {"inputs": np.stack(map_in_chunks(pool, load, rows.tolist()))}

        return HostRows(read, specs, images.labels, transform), faults
    file = cache_folder(options["cache_dir"]) / f"{name}-{fingerprint(settings)}.npy"
    stamp = fingerprint(DECODER, PIL.__version__, images.form.shape, images.form.fit, stamps())
    stored, faults = _read_cache(file, stamp) or _write_cache(file, stamp, images, options["corrupt"])
    return HostRows(lambda rows: {"inputs": stored.read(rows)}, specs, images.labels, transform), faults


def _read_cache(file: Path, stamp: str) -> tuple[NpyRows, dict[int, str]] | None:
    """Return the pixels of a cache file, uint8 [size, height, width, channels], and why some images are missing."""
    if not file.is_file():
        return None
    try:
        pixels = open_npy(file)
        with open(file, "rb") as stream:
            stream.seek(pixels.offset + pixels.nbytes)  # after the array: stamp, checksum and faults
            note = json.load(stream)
        if note["stamp"] != stamp:
            return None
        if note["checksum"] == zlib.crc32(pixels.data):
            return NpyRows(file), {int(row): reason for row, reason in note["faults"].items()}
    except (OSError, ValueError, KeyError, TypeError):  # a UserError is a ValueError
        pass
    warnings.warn(f"'{file}' is damaged; the images are decoded again.", stacklevel=2)
    return None


def _write_cache(file: Path, stamp: str, images: EncodedImages, corrupt: str) -> tuple[NpyRows, dict[int, str]]:
    """Decode all images into a cache file, and return the same as `_read_cache`."""
    faults: dict[int, str] = {}

    def content() -> Iterator[bytes | memoryview]:
        header, checksum = io.BytesIO(), 0
        shape = (len(images.labels), *images.form.shape)
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        yield header.getvalue()
        for part in _decoded(images, faults):
            checksum = zlib.crc32(part.data, checksum)
            yield part.data
        if corrupt == "stop":
            report_faults(faults, images.name, corrupt)
        yield json.dumps({"stamp": stamp, "checksum": checksum, "faults": faults}).encode()

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content())
    except OSError as error:
        raise UserError(
            f"'{file.parent}' cannot hold the decoded images ({error.strerror}); expected a folder to write "
            f"{max(images.bytes / 2**30, 0.1):.1f} GiB to. Give another data.cache_dir, or set data.cache=none."
        ) from error
    return NpyRows(file), faults


def report_faults(faults: dict[int, str], name: Callable[[int], str], corrupt: str) -> None:
    """Warn about damaged images that are left out, or refuse them."""
    if not faults:
        return
    first, *others = sorted(faults)
    found = described(name(first), faults[first])
    if others:
        found += f", nor can {len(others)} more, such as '{name(others[0])}'"
    if corrupt == "skip":
        warnings.warn(f"{len(faults)} damaged images are left out: {found}.", stacklevel=4)
        return
    raise UserError(f"{found}; {REMEDY}")


def _decoded(images: EncodedImages, faults: dict[int, str]) -> Iterator[np.ndarray]:
    """Yield the pixels of all images in order, in parts; damaged ones are 0, with the reason added to `faults`."""

    def load(row: int) -> np.ndarray:
        try:
            return images.load(row)
        except UnreadableImage as error:
            faults[row] = str(error)
            return np.zeros(images.form.shape, np.uint8)

    size, window = len(images.labels), max(TASKS, WINDOW_BYTES // math.prod(images.form.shape))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, size, window):
            yield np.stack(map_in_chunks(pool, load, range(start, min(start + window, size))))
