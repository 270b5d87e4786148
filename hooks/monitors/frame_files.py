"""The frames of animations on disk, for a run that goes on: one file a frame, numbered as they were added."""

from __future__ import annotations

import io
import shutil
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from PIL import Image

from hooks.monitors.animation import Frames
from hooks.monitors.files import file_name, write_files
from trainer.files import read_bytes

FOLDER = ".frames"
MOST_BYTES = 2**26
"""Of a frame, whose pixels Pillow bounds, too."""


def write_frames(animations: Mapping[str, Frames], folder: Path) -> None:
    """Write the latest frame of each animation.

    Args:
        animations: by name, each with a frame.
        folder: of the pictures.

    Raises:
        WriteError: the folder cannot be written to.
    """
    for name, frames in animations.items():
        path = _path(folder, name, frames.added - 1)
        write_files({path.name: frames.latest}, path.parent)


def read_frames(added: Mapping[str, int], folder: Path) -> dict[str, Frames]:
    """Return animations as they were; one whose frames are not all there and sound is left out, with a warning.

    Args:
        added: by name, how many frames it had had, at least 1.
        folder: of the pictures.
    """
    animations = {}
    for name, count in added.items():
        try:
            animations[name] = Frames.restored(count, partial(_read, folder, name))
        except Exception as error:  # noqa: BLE001 - a file may hold anything, and an animation is no reason to end
            shutil.rmtree(_path(folder, name, 0).parent, ignore_errors=True)
            warnings.warn(f"The animation of '{name}' starts anew: {error}.", stacklevel=2)
    return animations


def remove_frames(folder: Path) -> None:
    """Remove all frames: no run goes on from here.

    Args:
        folder: of the pictures.
    """
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / FOLDER / f"of_{file_name(name)}" / f"{number:06d}.png"


def _read(folder: Path, name: str, number: int) -> bytes:
    content = read_bytes(_path(folder, name, number), MOST_BYTES)
    Image.open(io.BytesIO(content), formats=["PNG"]).verify()  # the end, too, which showing a picture does not need
    Image.open(io.BytesIO(content), formats=["PNG"]).load()
    return content
