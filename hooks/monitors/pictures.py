"""Write the pictures of hooks and objectives into the run directory, as PNG files."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hooks.options import check_integer
from trainer.errors import UserError
from trainer.hook import HostHook
from trainer.run.control import Report, Run

DIRECTORY_NAME = "pictures"


class PictureFiles(HostHook):
    """Write `pictures/<name>.png` at the test, and `pictures/step_<n>/<name>.png` at evaluations on the way.

    State saved: how many evaluations there have been.
    """

    def __init__(self, *, every: int = 0) -> None:
        """Set how often pictures are written.

        Args:
            every: evaluations between two sets of pictures on the way, the first included; 0 for those of the test
                alone.
        """
        self._every = check_integer("every", every, minimum=0)
        self._evaluations = 0

    def state_dict(self) -> dict[str, Any]:
        return {"evaluations": self._evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        folder = run.directory / DIRECTORY_NAME
        if report.split == "test":
            write_pictures(run.pictures(report.step, report.split), folder)
        elif self._every and self._evaluations % self._every == 0:
            write_pictures(run.pictures(report.step, report.split), folder / f"step_{report.step:08d}")
        self._evaluations += 1


def write_pictures(pictures: dict[str, np.ndarray], folder: Path) -> None:
    """Write pictures as PNG files, each whole or not at all.

    Args:
        pictures: float [height, width, 1 or 3] in [0, 1], by name.
        folder: made when there is a picture to write.

    Raises:
        UserError: the folder cannot be written to.
    """
    for name, picture in pictures.items():
        path = folder / f"{file_name(name)}.png"
        unfinished = path.with_suffix(".unfinished")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(encode_picture(name, picture))
            unfinished.replace(path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            raise UserError(
                f"Cannot write {path}: {error.strerror}. Expected a directory with room: set run_dir, or "
                "hooks.pictures=null for no pictures."
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
