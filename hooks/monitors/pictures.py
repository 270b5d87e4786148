"""Write the pictures of hooks and objectives into the run directory: PNG files, and GIFs that show their course."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hooks.monitors.animation import Frames, add_frames, encode_animations
from hooks.options import check_flag, check_integer
from trainer.errors import WriteError
from trainer.hook import HostHook
from trainer.run.control import Report, Run

DIRECTORY_NAME = "pictures"


class PictureFiles(HostHook):
    """Write `pictures/<name>.png` at the test, and `pictures/step_<n>/<name>.png` at evaluations on the way.

    Training examples, as the network sees them, are written when training begins.

    With `animate`, `pictures/<name>.gif` shows what the picture was at each evaluation on the validation split. It is
    written when the run ends, however it ends. At most 200 frames are kept; a longer run drops every second one. A
    resumed run starts a new one.

    State saved: how many evaluations there have been.
    """

    def __init__(self, *, every: int = 0, animate: bool = False) -> None:
        """Set how often pictures are written.

        Args:
            every: evaluations between two sets of pictures on the way, the first included; 0 for those of the test
                alone.
            animate: whether pictures on the way become animations.
        """
        self._every = check_integer("every", every, minimum=0)
        self._animate = check_flag("animate", animate)
        self._animations: dict[str, Frames] = {}
        self._evaluations = 0

    def state_dict(self) -> dict[str, Any]:
        return {"evaluations": self._evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])

    def on_fit_begin(self, run: Run) -> None:
        write_pictures(run.first_pictures(), run.directory / DIRECTORY_NAME)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        folder = run.directory / DIRECTORY_NAME
        if report.split == "test":
            write_pictures(run.pictures(report.step, report.split), folder)
        elif self._every and self._evaluations % self._every == 0:
            write_pictures(run.pictures(report.step, report.split), folder / f"step_{report.step:08d}")
        if self._animate and report.split == "validation":
            add_frames(self._animations, run.pictures(report.step, report.split))
        self._evaluations += 1

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        animations = {f"{file_name(name)}.gif": gif for name, gif in encode_animations(self._animations).items()}
        write_files(animations, run.directory / DIRECTORY_NAME)


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


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Write files, each whole or not at all.

    Args:
        files: content by name.
        folder: made when there is a file to write.

    Raises:
        WriteError: the folder cannot be written to.
    """
    for name, content in files.items():
        path = folder / name
        unfinished = path.with_suffix(".unfinished")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise WriteError(
                f"Cannot write {path}: {error.strerror}. Expected a directory with room: set run_dir, or do without: "
                "hooks.pictures=null hooks.projector=null."
            ) from error


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


def file_name(name: str) -> str:
    """Return a picture's name as the name of a file, such as "mask_dense_kernel" for "mask/dense/kernel".

    Args:
        name: any text.
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_") or "picture"
