"""Write the pictures of hooks and objectives into the run directory: PNG files, and GIFs that show their course."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hooks.monitors.animation import Frames, add_frames, encode_animations
from hooks.monitors.files import file_name, write_files
from hooks.monitors.frame_files import read_frames, remove_frames, write_frames
from hooks.options import check_flag, check_integer
from trainer.hook import HostHook
from trainer.run.control import Report, Run
from trainer.run.results import COMPLETE

DIRECTORY_NAME = "pictures"


class PictureFiles(HostHook):
    """Write `pictures/<name>.png` at the test, and `pictures/step_<n>/<name>.png` at evaluations on the way.

    Training examples, as the network sees them, are written when training begins.

    With `animate`, `pictures/<name>.gif` shows what the picture was at each evaluation on the validation split. It is
    written when the run ends, however it ends. At most 200 frames are kept; a longer run drops every second one. Until
    the run is complete, its frames are kept as files, too, so that a resumed run goes on with them.

    Group:
        monitor

    State:
        evaluations: how many there have been.
        frames: how many frames each animation has been given.

    Cost:
        Only where pictures are due: what the hooks' `observe` computes, and PNG files. Measured: 0.3 s in all for
        `recipe=baseline`, at the begin and at the test.

    Pitfalls:
        tests/unit/monitors/test_pictures.py: the rhythm and the frames go on over a resume; names of layers make safe
            file names.
        tests/unit/monitors/test_animation.py: a long run keeps evenly spread frames, and the last one.

    Example:
        python train.py recipe=center_loss hooks.pictures.every=5
        python train.py recipe=frozen_mask hooks.pictures.animate=true
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
        self._added: dict[str, int] = {}
        self._evaluations = 0

    def state_dict(self) -> dict[str, Any]:
        frames = {name: frames.added for name, frames in self._animations.items()}
        return {"evaluations": self._evaluations, "frames": frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])
        self._added = {str(name): int(count) for name, count in state["frames"].items()}

    def on_resume(self, run: Run) -> None:
        self._animations = read_frames(self._added, run.directory / DIRECTORY_NAME)

    def on_fit_begin(self, run: Run) -> None:
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
        elif self._every and number % self._every == 0:
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
