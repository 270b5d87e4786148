"""Pictures and animations."""

from __future__ import annotations

import io
import math
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from hookline.trainer.errors import check_integer
from hookline.trainer.files import make_folder, read_bytes, write_whole
from hookline.trainer.hook import HostHook, Report, Run
from hookline.trainer.run.results import COMPLETE

DIRECTORY_NAME, FRAMES, GONE = "pictures", ".frames", ".frames_gone"
MOST_FRAMES = 200  # of a longer animation, only every second, fourth, ... frame is shown
TOTAL_MILLISECONDS, SHORTEST, LONGEST = 10_000, 60, 500  # of all frames together; limits for a single one
LAST_MILLISECONDS = 2_000
MOST_BYTES = 2**26  # largest size of a frame file; Pillow also limits its pixels


class PictureFiles(HostHook):
    """Write `pictures/<name>.png` at the final test and, with `every`, `pictures/step_<n>/<name>.png` during training.

    Training examples, as the network sees them, are written when training begins. With `animate`, `pictures/<name>.gif`
    shows the picture at each evaluation on the validation split, in at most 201 frames. It is written when the run
    ends, even if the run fails. A resumed run continues it.

    Group: monitor

    State:
        evaluations: number of evaluations so far.
        frames: number of frames given to each animation.

    Cost: Only when pictures are due: 0.3 s in total for `recipe=baseline`.

    Pitfalls:
        tests/hooks/monitors/test_pictures.py: frames continue after a resume; layer names become safe file names.

    Example:
        python train.py recipe=center_loss hooks.pictures.every=5
        python train.py recipe=frozen_mask hooks.pictures.animate=true
    """

    def __init__(self, *, every: int = 0, animate: bool = False) -> None:
        """Set how often to write.

        Args:
            every: evaluations between two sets of pictures during training, starting at the first; 0: only at the test.
            animate: whether pictures during training become animations.
        """
        self._every = check_integer("every", every, minimum=0)
        self._animate = animate
        self._frames: dict[str, int] = {}
        self._evaluations = 0

    def state_dict(self) -> dict[str, Any]:
        return {"evaluations": self._evaluations, "frames": dict(self._frames)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])
        self._frames = {str(name): int(count) for name, count in state["frames"].items()}

    def on_fit_begin(self, run: Run) -> None:
        if not (run.directory / DIRECTORY_NAME / FRAMES).is_dir():
            self._frames = {}  # those of an earlier fit are in its animations
        write_pictures(run.views.first_pictures, run.directory / DIRECTORY_NAME)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        folder = run.directory / DIRECTORY_NAME
        number, self._evaluations = self._evaluations, self._evaluations + 1
        if self._animate and report.split == "validation":
            for name, picture in run.views.shown(report).pictures.items():
                frame, self._frames[name] = self._frames.get(name, 0), self._frames.get(name, 0) + 1
                path = frame_path(folder, name, frame)
                write_files({path.name: encode_picture(name, picture)}, path.parent)
        if report.split == "test":
            write_pictures(run.views.shown(report).pictures, folder)
        elif is_due(self._every, number):
            write_pictures(run.views.shown(report).pictures, folder / f"step_{report.step:08d}")

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        folder = run.directory / DIRECTORY_NAME
        there = (folder / FRAMES).is_dir()  # unless an earlier process was killed after it had written the animations
        for name, count in self._frames.items() if there else ():
            frames = read_frames(folder, name, count)
            if len(frames) > 1:
                write_files({f"{file_name(name)}.gif": encode_animation(frames)}, folder)
        if summary["status"] in COMPLETE:  # a later fit starts new animations
            if there:  # atomic, so that the folder is never found partly removed
                (folder / FRAMES).rename(folder / GONE)
            shutil.rmtree(folder / GONE, ignore_errors=True)


def is_due(every: int, number: int, *, last: bool = False) -> bool:
    """Return whether evaluation `number`, counted from 0, is due: every `every`-th one and the last; none for 0."""
    return bool(every) and (last or number % every == 0)


def write_pictures(pictures: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write pictures, float [height, width, 1 or 3] in [0, 1], as PNG files; create the folder if there are any."""
    write_files({f"{file_name(name)}.png": encode_picture(name, picture) for name, picture in pictures.items()}, folder)


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files by name, each completely or not at all; create the folder if there are any."""
    for name, content in files.items():
        make_folder(folder)
        write_whole(folder / name, content)


def file_name(name: str) -> str:
    """Return a file name for a name, such as "mask_dense_kernel" for "mask/dense/kernel"."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_") or "picture"


def encode_picture(name: str, picture: np.ndarray) -> bytes:
    """Return a picture, float [height, width, 1 or 3] in [0, 1], as PNG."""
    if picture.ndim != 3 or picture.shape[2] not in (1, 3) or not (picture.min() >= 0.0 and picture.max() <= 1.0):
        raise ValueError(
            f"The picture '{name}' has the shape {picture.shape} and values from {picture.min()} to {picture.max()}. "
            "Expected [height, width, 1 or 3] in [0, 1]."
        )
    return tf.io.encode_png(np.round(picture * 255.0).astype(np.uint8)).numpy()


def frame_path(folder: Path, name: str, number: int) -> Path:
    """Return the path of a frame of an animation."""
    return folder / FRAMES / f"of_{file_name(name)}" / f"{number:06d}.png"


def read_frames(folder: Path, name: str, count: int) -> list[Image.Image]:
    """Return evenly spaced frames of an animation, and its last one; skip those that are missing or damaged."""
    stride = 2 ** max(0, math.ceil(math.log2(count / MOST_FRAMES)))
    frames: list[Image.Image] = []
    missing: list[str] = []
    for number in sorted({*range(0, count, stride), count - 1}):
        try:
            content = read_bytes(frame_path(folder, name, number), MOST_BYTES)
            Image.open(io.BytesIO(content), formats=["PNG"]).verify()  # includes the end, which `load` does not need
            image = Image.open(io.BytesIO(content), formats=["PNG"])
            image.load()
            frames.append(image)
        except Exception as error:  # noqa: BLE001 - a file may hold anything, and an animation is no reason to end
            missing.append(f"{number} ({error})")
    if missing:
        warnings.warn(f"The animation of '{name}' lacks {len(missing)} frames, such as {missing[0]}.", stacklevel=2)
    return frames


def encode_animation(frames: list[Image.Image]) -> bytes:
    """Return frames as an animated GIF that loops forever and pauses on the last one."""
    first, *others = frames
    each = int(np.clip(TOTAL_MILLISECONDS / len(frames), SHORTEST, LONGEST))
    file = io.BytesIO()
    durations = [each] * len(others) + [LAST_MILLISECONDS]
    first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
    return file.getvalue()
