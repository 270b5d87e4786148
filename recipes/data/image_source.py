"""Images as a source: in memory, cached, or decoded for every batch."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import socket
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
import tensorflow as tf

from hookline.recipes.data.array_files import NpyRows
from hookline.recipes.data.digits import centered_pixels, pixel_preparation
from hookline.recipes.data.hold_out import PARTS
from hookline.recipes.data.images import ImageForm, UnreadableImage, described, unreadable
from hookline.recipes.data.input_form import HostRows, ReadRows, check_fits, map_in_chunks, processors
from hookline.recipes.data.targets import check_every_class
from hookline.trainer.errors import UserError, unknown_name, user_path
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource, Source

PARTIAL = ".partial"


def cache_folder(cache_dir: str | None) -> Path:
    """Return the folder of cache files."""
    if cache_dir is not None:
        return user_path(cache_dir, "data.cache_dir")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hookline"


def fingerprint(*values: Any) -> str:
    """Return 32 hexadecimal digits that differ if any value does."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def file_stamp(path: str | Path) -> list[Any]:
    """Return the identity of a file's content: its path, its size, and when it was written."""
    status = os.stat(path)
    return [str(path), status.st_size, status.st_mtime_ns]


@contextmanager
def written_whole(file: Path) -> Iterator[BinaryIO]:
    """Give a file to write; once all of it is on the disk, it takes its name and replaces any file of that name.

    If anything goes wrong before that, nothing is left behind. Leftovers of killed processes are removed.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    _remove_orphans(file.parent, host)
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.{os.getpid()}@{host}{PARTIAL}")
    try:
        with open(partial, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _remove_orphans(folder: Path, host: str) -> None:
    """Remove unfinished files of this machine's processes that no longer run."""
    for partial in folder.glob(f".*@{host}{PARTIAL}"):
        process = partial.name.removesuffix(f"@{host}{PARTIAL}").rpartition(".")[2]
        if process.isdigit() and not _runs(int(process)):
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


MAGIC = b"hookline pixels\n"
LENGTH_BYTES = 8
BLOCK = 2**24
"""Bytes that are checked at a time."""


@dataclass(frozen=True)
class PixelCache:
    """Keep the pixels of a set of images.

    The file is an npy file with a description in JSON behind the pixels, then its length and a mark. Without the mark
    it is not whole.
    """

    file: Path
    stamp: str  # of the source of the pixels; a file with another stamp is stale

    def open(self) -> tuple[NpyRows, dict[int, str]] | None:
        """Return the pixels, uint8 [size, height, width, channels], and why some images are missing.

        All of the file is read once, to compare its checksum.
        """
        try:
            with open(self.file, "rb") as stream:
                note, end = _description(stream)
                if note["stamp"] != self.stamp:
                    return None
                if _checksum(stream, note["start"], end) == note["checksum"]:
                    return NpyRows(self.file), {int(row): reason for row, reason in note["faults"].items()}
        except OSError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):  # a UserError is a ValueError
            pass
        warnings.warn(f"'{self.file}' is damaged; the images are decoded again.", stacklevel=2)
        return None

    def write(self, parts: Iterable[np.ndarray], faults: dict[int, str], shape: tuple[int, ...], most: int) -> None:
        """Write pixels in place of what the file held."""
        needed = most * int(np.prod(shape))
        try:
            with written_whole(self.file) as stream:
                free = shutil.disk_usage(self.file.parent).free
                if needed > free:
                    raise self._no_room(needed, f"{free / 2**30:.1f} GiB are free")
                start = stream.write(_header(most, shape))
                size, checksum = 0, 0
                for part in parts:
                    stream.write(part.data)
                    checksum = zlib.crc32(part.data, checksum)
                    size += len(part)
                header = _header(size, shape)  # numpy pads it, so the number may change
                note = {"stamp": self.stamp, "start": start, "checksum": checksum, "faults": faults}
                text = json.dumps(note).encode()
                stream.write(text + len(text).to_bytes(LENGTH_BYTES, "little") + MAGIC)
                stream.seek(0)
                stream.write(header)
        except OSError as error:
            raise self._no_room(needed, error.strerror or str(error)) from error

    def _no_room(self, needed: int, reason: str) -> UserError:
        return UserError(
            f"'{self.file.parent}' cannot hold the decoded images ({reason}); expected a folder to write "
            f"{max(needed / 2**30, 0.1):.1f} GiB to. Give another data.cache_dir, or set data.cache=none."
        )


def _header(size: int, shape: tuple[int, ...]) -> bytes:
    """Return how an npy file begins."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (size, *shape)})
    return stream.getvalue()


def _description(stream: BinaryIO) -> tuple[dict[str, Any], int]:
    """Return the description in a file, and where it begins."""
    end = stream.seek(0, 2) - len(MAGIC) - LENGTH_BYTES
    stream.seek(max(end, 0))
    length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    if stream.read() != MAGIC or length > end:
        raise ValueError
    stream.seek(end - length)
    return json.loads(stream.read(length)), end - length


def _checksum(stream: BinaryIO, start: int, end: int) -> int:
    """Return the checksum of the pixels, which end where the description begins."""
    stream.seek(start)
    left, checksum = end - start, 0
    while left > 0:
        block = stream.read(min(left, BLOCK))
        checksum = zlib.crc32(block, checksum)
        left -= len(block) or left
    return checksum


CACHES = ("memory", "disk", "none")
CORRUPT = ("stop", "skip")
PEAK = 255
WINDOW_BYTES = 2**26
"""Pixels that are decoded before they are written."""
NAMED = 5
"""Damaged images that a message names."""
DECODER = 1
"""Increased when the same file is decoded to other pixels."""


@dataclass(frozen=True, eq=False)
class EncodedImages:
    """Describe images that are to be decoded."""

    labels: np.ndarray  # int64 [size], the class of each
    load: Callable[[int], np.ndarray]  # uint8 of the form's shape, or raises UnreadableImage; called by several threads
    name: Callable[[int], str]  # where an image lies, for messages
    form: ImageForm


@dataclass(frozen=True)
class Holding:
    """Say how images are held, and what becomes of those that cannot be decoded: the options of these names."""

    cache: str
    cache_dir: str | None
    corrupt: str

    def __post_init__(self) -> None:
        """Check the choices."""
        for name, value, known in (("cache", self.cache, CACHES), ("corrupt", self.corrupt, CORRUPT)):
            if value not in known:
                raise unknown_name(f"data.{name}", value, known)
        if self.cache_dir is not None and not str(self.cache_dir).strip():
            raise UserError("data.cache_dir is empty; expected a folder, or null for the user's cache folder.")


def image_data(
    name: str,
    images: EncodedImages,
    parts: Mapping[str, np.ndarray],
    holding: Holding,
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

    A part is rows of `images`. Classes that a checked part lacks are reported; in training they are refused where
    there is a `remedy`. Pixels in a cache file are of these settings and of the stamps of their rows.
    """

    def check(parts: Mapping[str, np.ndarray]) -> None:
        check_every_class({each: images.labels[parts[each]] for each in checked}, classes, class_names, remedy=remedy)

    check(parts)
    rows = np.sort(np.concatenate(list(parts.values())))
    used = EncodedImages(
        images.labels[rows],
        lambda place: images.load(int(rows[place])),
        lambda place: images.name(int(rows[place])),
        images.form,
    )
    source, kept = open_images(used, holding, name, settings, lambda: stamps(rows))
    held, form = rows[kept], images.form
    if len(kept) < len(rows):
        parts = {each: np.intersect1d(of, held) for each, of in parts.items()}
        check(parts)
    named = None if row_name is None else lambda row: row_name(int(held[row]))
    return Data(
        name,
        **{each: Split(each, source, np.searchsorted(held, of), named) for each, of in parts.items()},
        input_shape=form.shape,
        classes=classes,
        class_names=tuple(class_names),
        preparation=pixel_preparation(form.shape, PEAK, fit=form.fit),
    )


def open_images(
    images: EncodedImages, holding: Holding, name: str, settings: Any, stamps: Callable[[], Any]
) -> tuple[Source, np.ndarray]:
    """Return a source of the images, and which of them it holds."""
    transform, specs = centered_pixels(PEAK), {"inputs": tf.TensorSpec(images.form.shape, tf.uint8)}
    if holding.cache == "none":
        faults: dict[int, str] = {}
        if holding.corrupt == "skip":
            deque(_decoded(images, faults), maxlen=0)
        kept = _without(faults, images, holding.corrupt)
        return HostRows(_reader(images, kept), specs, images.labels[kept], transform), kept
    if holding.cache == "memory":
        pixels, kept = _decode(images, holding.corrupt)
        return ArraySource({"inputs": pixels, "targets": images.labels[kept]}, transform), kept
    file = cache_folder(holding.cache_dir) / f"{name}-{fingerprint(settings)}.npy"
    cache = PixelCache(file, fingerprint(DECODER, PIL.__version__, images.form.shape, images.form.fit, stamps()))
    stored, kept = _stored(images, cache, holding.corrupt)
    return HostRows(lambda rows: {"inputs": stored.read(rows)}, specs, images.labels[kept], transform), kept


def report_faults(faults: dict[int, str], name: Callable[[int], str], corrupt: str) -> None:
    """Name damaged images and count them."""
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
    """Return the pixels of all intact images in memory, and which those are."""
    size, form = len(images.labels), images.form
    what = f"The set of {size} images of {form.height} x {form.width} pixels"
    check_fits(size * form.bytes, what, "Set data.cache=disk or none, or a smaller data.image_size.")
    pixels, done = np.empty([size, *form.shape], np.uint8), 0
    faults: dict[int, str] = {}
    for part in _decoded(images, faults):
        pixels[done : done + len(part)] = part
        done += len(part)
    return pixels[:done], _without(faults, images, corrupt)


def _stored(images: EncodedImages, cache: PixelCache, corrupt: str) -> tuple[NpyRows, np.ndarray]:
    """Return the pixels of all intact images in the cache file, and which those are."""
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
    """Yield the pixels of all intact images in order, part by part, and note why others are missing."""
    threads, size = processors(), len(images.labels)

    def load(row: int) -> np.ndarray | str:
        try:
            return images.load(row)
        except UnreadableImage as error:
            return str(error)

    window = max(8 * threads, WINDOW_BYTES // images.form.bytes)
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, size, window):
            rows = range(start, min(start + window, size))
            loaded = map_in_chunks(pool, load, rows, -(-len(rows) // (8 * threads)))
            faults |= {row: each for row, each in zip(rows, loaded, strict=True) if isinstance(each, str)}
            whole = [each for each in loaded if not isinstance(each, str)]
            if whole:
                yield np.stack(whole)


def _reader(images: EncodedImages, kept: np.ndarray) -> ReadRows:
    """Return the function that decodes the images of a batch, with threads that all batches share."""
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
