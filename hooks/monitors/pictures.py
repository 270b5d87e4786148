"""Pictures and animations."""

from __future__ import annotations

import io
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from hookline.hooks.monitors.console import file_name, write_files
from hookline.hooks.monitors.every import is_due
from hookline.hooks.options import check_flag, check_integer
from hookline.trainer.files import read_bytes
from hookline.trainer.hook import HostHook
from hookline.trainer.run.control import Report, Run
from hookline.trainer.run.results import COMPLETE

MOST_FRAMES = 200  # beyond these every second one is dropped, so that memory stays small however long the run
TOTAL_MILLISECONDS, SHORTEST, LONGEST = 10_000, 60, 500  # of all frames together, and of one
LAST_MILLISECONDS = 2_000


@dataclass
class Frames:
    """Hold the frames of one animation, compressed, evenly spread over all that were added.

    Attributes:
        kept: frames as PNG.
        stride: one of this many added frames is kept.
        added: how many there have been.
        latest: the last one that was added.
    """

    kept: list[bytes] = field(default_factory=list)
    stride: int = 1
    added: int = 0
    latest: bytes = b""

    def add(self, picture: np.ndarray) -> None:
        """Add a picture.

        Args:
            picture: float [height, width, 1 or 3] in [0, 1].
        """
        self.latest = _compress(picture)
        if self.added % self.stride == 0:
            self.kept.append(self.latest)
        self.added += 1
        if len(self.kept) > MOST_FRAMES:
            del self.kept[1::2]
            self.stride *= 2

    @classmethod
    def restored(cls, added: int, read: Callable[[int], bytes]) -> Frames:
        """Return the frames as they were after a number of additions.

        Args:
            added: how many there had been, at least 1.
            read: called with the number of a frame, from 0 in the order of their addition; returns it as PNG.
        """
        stride = 1
        while (added - 1) // stride + 1 > MOST_FRAMES:
            stride *= 2
        kept = {number: read(number) for number in range(0, added, stride)}
        latest = kept[added - 1] if added - 1 in kept else read(added - 1)
        return cls(list(kept.values()), stride, added, latest)

    def encode(self) -> bytes:
        """Return all frames as an animated GIF that loops forever and pauses on the last one."""
        frames = self.kept if self.kept[-1] is self.latest else [*self.kept, self.latest]
        images = [Image.open(io.BytesIO(frame)) for frame in frames]
        size = max(image.width for image in images), max(image.height for image in images)
        first, *others = [_on_canvas(image, size) for image in images]
        each = int(np.clip(TOTAL_MILLISECONDS / len(frames), SHORTEST, LONGEST))
        file = io.BytesIO()
        durations = [each] * len(others) + [LAST_MILLISECONDS]
        first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
        return file.getvalue()


def add_frames(animations: dict[str, Frames], pictures: Mapping[str, np.ndarray]) -> None:
    """Add a picture to each animation of its name.

    Args:
        animations: by name; a new name gets a new one.
        pictures: float [height, width, 1 or 3] in [0, 1], by name.
    """
    for name, picture in pictures.items():
        animations.setdefault(name, Frames()).add(picture)


def encode_animations(animations: Mapping[str, Frames]) -> dict[str, bytes]:
    """Return animated GIFs by name; a picture that was shown only once gives none.

    Args:
        animations: by name.
    """
    return {name: frames.encode() for name, frames in animations.items() if frames.added > 1}


def _compress(picture: np.ndarray) -> bytes:
    """Return a picture in 256 colours, as a GIF has them, as PNG."""
    pixels = np.round(picture * 255.0).astype(np.uint8)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(file, "PNG")
    return file.getvalue()


def _on_canvas(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return an image at the size of all frames; a smaller one goes into the upper left corner."""
    if image.size == size:
        image.load()
        return image
    canvas = Image.new("RGB", size)
    canvas.paste(image.convert("RGB"))
    return canvas.quantize(256, dither=Image.Dither.NONE)


FOLDER = ".frames"
MOST_BYTES = 2**26
"""Largest size of a frame file; Pillow also limits its pixels."""


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
    """Return animations as they were; one with missing or damaged frames is left out, with a warning.

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
            warnings.warn(f"The animation of '{name}' starts over: {error}.", stacklevel=2)
    return animations


def remove_frames(folder: Path) -> None:
    """Remove all frames: no run resumes from here.

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


DIRECTORY_NAME = "pictures"


class PictureFiles(HostHook):
    """Write `pictures/<name>.png` at the test, and `pictures/step_<n>/<name>.png` at evaluations during training.

    Training examples, as the network sees them, are written when training begins.

    With `animate`, `pictures/<name>.gif` shows the picture at each evaluation on the validation split. It is written
    when the run ends, however it ends. At most 200 frames are kept; a longer run drops every second one. Until the run
    is complete, its frames are also kept as files, so that a resumed run continues with them.

    Group:
        monitor

    State:
        evaluations: how many there have been.
        frames: how many frames each animation has been given.

    Cost:
        Only when pictures are due: what hooks compute of the observed examples, and PNG files. Measured: 0.3 s in total
        for `recipe=baseline`, at the beginning and at the test.

    Pitfalls:
        tests/hooks/monitors/test_pictures.py: the rhythm and the frames continue across a resume; layer names become
            safe file names; a long run keeps evenly spread frames, and the last one.

    Example:
        python train.py recipe=center_loss hooks.pictures.every=5
        python train.py recipe=frozen_mask hooks.pictures.animate=true
    """

    def __init__(self, *, every: int = 0, animate: bool = False) -> None:
        """Set how often pictures are written.

        Args:
            every: evaluations between two sets of pictures during training, the first included; 0 for the test alone.
            animate: whether pictures during training become animations.
        """
        self._every = check_integer("every", every, minimum=0)
        self._animate = check_flag("animate", animate)
        self._animations: dict[str, Frames] = {}
        self._added: dict[str, int] = {}
        self._evaluations = 0

    def state_dict(self) -> dict[str, Any]:
        frames = {name: frames.added for name, frames in self._animations.items()}
        return {"evaluations": self._evaluations, "frames": frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])
        self._added = {str(name): int(count) for name, count in state["frames"].items()}

    def on_fit_begin(self, run: Run) -> None:
        if run.from_checkpoint:
            self._animations = read_frames(self._added, run.directory / DIRECTORY_NAME)
        write_pictures(run.first_pictures(), run.directory / DIRECTORY_NAME)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        folder = run.directory / DIRECTORY_NAME
        number, self._evaluations = self._evaluations, self._evaluations + 1
        if self._animate and report.split == "validation":
            pictures = run.pictures(report.step, report.split)
            add_frames(self._animations, pictures)
            write_frames({name: self._animations[name] for name in pictures}, folder)
        if report.split == "test":
            write_pictures(run.pictures(report.step, report.split), folder)
        elif is_due(self._every, number):
            write_pictures(run.pictures(report.step, report.split), folder / f"step_{report.step:08d}")

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        folder = run.directory / DIRECTORY_NAME
        animations = {f"{file_name(name)}.gif": gif for name, gif in encode_animations(self._animations).items()}
        write_files(animations, folder)
        if summary["status"] in COMPLETE:
            remove_frames(folder)


def write_pictures(pictures: dict[str, np.ndarray], folder: Path) -> None:
    """Write pictures as PNG files.

    Args:
        pictures: float [height, width, 1 or 3] in [0, 1], by name.
        folder: made when there is a picture to write.

    Raises:
        WriteError: the folder cannot be written to.
    """
    encoded = {f"{file_name(name)}.png": encode_picture(name, picture) for name, picture in pictures.items()}
    write_files(encoded, folder)


def encode_picture(name: str, picture: np.ndarray) -> bytes:
    """Return a picture as PNG.

    Args:
        name: for the error.
        picture: float [height, width, channels] in [0, 1], 1 or 3 channels.

    Raises:
        ValueError: another shape, or values out of range.
    """
    if picture.ndim != 3 or picture.shape[2] not in (1, 3) or not (picture.min() >= 0.0 and picture.max() <= 1.0):
        raise ValueError(
            f"The picture '{name}' has the shape {picture.shape} and values from {picture.min()} to {picture.max()}. "
            "Expected [height, width, 1 or 3] in [0, 1]."
        )
    return tf.io.encode_png(np.round(picture * 255.0).astype(np.uint8)).numpy()
