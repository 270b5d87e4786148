"""Decoded images in one npy file: decoded once, and only read from then on."""

from __future__ import annotations

import io
import json
import shutil
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from recipes.data.cache_folder import written_whole
from recipes.data.npy_rows import NpyRows
from trainer.errors import UserError

MAGIC = b"hookline pixels\n"
LENGTH_BYTES = 8
BLOCK = 2**24
"""Bytes that are checked at a time."""


@dataclass(frozen=True)
class PixelCache:
    """Keep the pixels of a set of images.

    The file is an npy file with a description in JSON behind the pixels, then its length and a mark. Without the mark
    it is not whole.

    Attributes:
        file: that holds them.
        stamp: of what the pixels are made from; another stamp in the file makes it stale.
    """

    file: Path
    stamp: str

    def open(self) -> tuple[NpyRows, dict[int, str]] | None:
        """Return the pixels, uint8 [size, height, width, channels], and why some images are missing.

        All of the file is read once, to compare its checksum.

        Returns:
            The pixels and the reasons that `write` was given; None where the file does not exist, is stale or damaged.
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
        """Write pixels in place of what the file held.

        Args:
            parts: uint8 [n, *shape], one after the other; making them may fill `faults`.
            faults: why an image is missing, by its place among all.
            shape: of one image.
            most: images that may come.

        Raises:
            UserError: the folder cannot be written to, or has not enough room.
        """
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
                header = _header(size, shape)  # numpy pads it, so that the number may become another
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
    """Return the description in a file, and where it begins.

    Raises:
        ValueError: there is none, because the file is cut off or something else.
    """
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
