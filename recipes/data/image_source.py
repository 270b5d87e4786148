"""From encoded images to a source: held in memory, in a file, or decoded again for every batch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL
import tensorflow as tf

from recipes.data.cache_folder import cache_folder, fingerprint
from recipes.data.host_rows import HostRows, ReadRows
from recipes.data.image_form import ImageForm
from recipes.data.image_formats import UnreadableImage, described, unreadable
from recipes.data.npy_rows import NpyRows
from recipes.data.pixel_cache import PixelCache
from recipes.data.pixels import centered_pixels
from recipes.data.read_files import map_in_chunks, processors
from trainer.errors import UserError, unknown_name
from trainer.input.source import ArraySource, Source

CACHES = ("memory", "disk", "none")
CORRUPT = ("stop", "skip")
PEAK = 255
MEMORY_SHARE = 0.5
"""How much of the machine's memory the decoded images may take; TensorFlow copies them once."""
WINDOW_BYTES = 2**26
"""Pixels that are decoded before they are written."""
NAMED = 5
"""Damaged images that a message names."""
DECODER = 1
"""Raised when the same file is decoded to other pixels."""


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Describe images that are to be decoded.

    Attributes:
        labels: int64 [size], the class of each.
        load: returns an image, uint8 of the form's shape, or raises `UnreadableImage`; called from several threads.
        name: returns where an image lies, for messages.
        form: of all.
    """

    labels: np.ndarray
    load: Callable[[int], np.ndarray]
    name: Callable[[int], str]
    form: ImageForm


@dataclass(frozen=True)
class Holding:
    """Say how images are held.

    Attributes:
        cache: data.cache, one of `CACHES`.
        cache_dir: data.cache_dir, the folder of the file that cache "disk" makes; None for the user's cache folder.
        corrupt: data.corrupt, what to do with images that cannot be decoded, one of `CORRUPT`.
    """

    cache: str
    cache_dir: str | None
    corrupt: str

    def __post_init__(self) -> None:
        """Check the choices.

        Raises:
            UserError: one that does not exist.
        """
        for name, value, known in (("cache", self.cache, CACHES), ("corrupt", self.corrupt, CORRUPT)):
            if value not in known:
                raise unknown_name(f"data.{name}", value, known)
        if self.cache_dir is not None and not str(self.cache_dir).strip():
            raise UserError("data.cache_dir is empty; expected a folder, or null for the user's cache folder.")


def open_images(
    images: EncodedImages, holding: Holding, name: str, settings: Any, stamps: Callable[[], Any]
) -> tuple[Source, np.ndarray]:
    """Return a source of the images, and which of them it holds.

    Args:
        images: to be decoded.
        holding: how they are held.
        name: of the data.
        settings: what distinguishes the cache files of this data; JSON values.
        stamps: returns what changes when an image does; JSON values. Called for a cache on the disk only.

    Returns:
        The source, and the rows of `images` that are in it, int64 in ascending order. Those that are not are damaged.

    Raises:
        UserError: an image is damaged and `holding` says "stop", or there is no room.
    """
    transform, specs = centered_pixels(PEAK), {"inputs": tf.TensorSpec(images.form.shape, tf.uint8)}
    if holding.cache == "none":
        kept = _without(_find_faults(images) if holding.corrupt == "skip" else {}, images, holding.corrupt)
        return HostRows(_reader(images, kept), specs, images.labels[kept], transform), kept
    if holding.cache == "memory":
        pixels, kept = _decode(images, holding.corrupt)
        return ArraySource({"inputs": pixels, "targets": images.labels[kept]}, transform), kept
    file = cache_folder(holding.cache_dir) / f"{name}-{fingerprint(settings)}.npy"
    cache = PixelCache(file, fingerprint(DECODER, PIL.__version__, images.form.shape, images.form.fit, stamps()))
    stored, kept = _stored(images, cache, holding.corrupt)
    return HostRows(lambda rows: {"inputs": stored.read(rows)}, specs, images.labels[kept], transform), kept


def report_faults(faults: dict[int, str], name: Callable[[int], str], corrupt: str) -> None:
    """Name damaged images and count them.

    Args:
        faults: why each cannot be decoded, by its place.
        name: returns where an image lies.
        corrupt: "stop" or "skip".

    Raises:
        UserError: there are some, and they are to stop the run.
    """
    if not faults:
        return
    (first, reason), *rest = sorted(faults.items())
    others = [f"'{name(row)}'" for row, _ in rest]
    shown = ", ".join(others[: NAMED - 1]) + (", ..." if len(others) >= NAMED else "")
    if corrupt == "skip":
        also = f"; also {shown}" if rest else ""
        count = f"{len(faults)} damaged images are" if rest else "1 damaged image is"
        warnings.warn(f"{count} left out: {described(name(first), reason)}{also}.", stacklevel=4)
        return
    if not rest:
        raise unreadable(name(first), reason)
    raise UserError(
        f"{described(name(first), reason)}, nor can {len(rest)} more: {shown}. Replace or remove them, or set "
        "data.corrupt=skip to leave them out."
    )


def _without(faults: dict[int, str], images: EncodedImages, corrupt: str) -> np.ndarray:
    report_faults(faults, images.name, corrupt)
    kept = np.setdiff1d(np.arange(len(images.labels)), np.fromiter(faults, np.int64, len(faults)))
    if not kept.size:
        raise UserError(f"None of {len(images.labels)} images can be decoded. Give others.")
    return kept


def _decode(images: EncodedImages, corrupt: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels of all whole images in memory, and which those are."""
    size, form = len(images.labels), images.form
    held = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size * form.bytes > MEMORY_SHARE * held:
        raise UserError(
            f"{size} images of {form.height} x {form.width} pixels take {size * form.bytes / 2**30:.1f} GiB, and this "
            f"machine has {held / 2**30:.1f} GiB; expected at most half. Set data.cache=disk or none, or a smaller "
            "data.image_size."
        )
    pixels, done = np.empty([size, *form.shape], np.uint8), 0
    faults: dict[int, str] = {}
    for part in _decoded(images, faults):
        pixels[done : done + len(part)] = part
        done += len(part)
    return pixels[:done], _without(faults, images, corrupt)


def _stored(images: EncodedImages, cache: PixelCache, corrupt: str) -> tuple[NpyRows, np.ndarray]:
    """Return the pixels of all whole images in the cache file, and which those are."""
    found = cache.open()
    if found is None:
        faults: dict[int, str] = {}

        def parts() -> Iterator[np.ndarray]:
            yield from _decoded(images, faults)
            if corrupt == "stop":
                report_faults(faults, images.name, corrupt)

        cache.write(parts(), faults, images.form.shape, len(images.labels))
        found = cache.open()
        if found is None:
            raise UserError(f"'{cache.file}' was written and is not the same when read. Give another data.cache_dir.")
    pixels, faults = found
    return pixels, _without(faults, images, corrupt)


def _decoded(images: EncodedImages, faults: dict[int, str]) -> Iterator[np.ndarray]:
    """Yield the pixels of all whole images in order, part by part, and note why others are missing."""
    threads, size = processors(), len(images.labels)
    window = max(8 * threads, WINDOW_BYTES // images.form.bytes)
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, size, window):
            rows = range(start, min(start + window, size))
            loaded = map_in_chunks(pool, lambda row: _load(images, row), rows, -(-len(rows) // (8 * threads)))
            faults |= {row: each for row, each in zip(rows, loaded, strict=True) if isinstance(each, str)}
            whole = [each for each in loaded if not isinstance(each, str)]
            if whole:
                yield np.stack(whole)


def _find_faults(images: EncodedImages) -> dict[int, str]:
    faults: dict[int, str] = {}
    for _ in _decoded(images, faults):
        pass
    return faults


def _load(images: EncodedImages, row: int) -> np.ndarray | str:
    """Return an image, or why it cannot be decoded."""
    try:
        return images.load(row)
    except UnreadableImage as error:
        return str(error)


def _reader(images: EncodedImages, kept: np.ndarray) -> ReadRows:
    """Return what decodes the images of a batch, by threads that all batches share."""
    threads = processors()
    pool = ThreadPoolExecutor(threads)

    def load(row: int) -> np.ndarray:
        try:
            return images.load(row)
        except UnreadableImage as error:
            raise unreadable(images.name(row), error) from error

    def read(rows: np.ndarray) -> dict[str, np.ndarray]:
        chunk = max(1, -(-len(rows) // (2 * threads)))
        return {"inputs": np.stack(map_in_chunks(pool, load, kept[rows].tolist(), chunk))}

    return read
