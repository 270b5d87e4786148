"""Animations: every frame in its order, small in memory, readable by others."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from hookline.hooks.monitors.pictures import LAST_MILLISECONDS, MOST_FRAMES, Frames, add_frames, encode_animations


def grey(value: float, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width, 1), value, np.float32)


def frames_of(gif: bytes) -> tuple[list[np.ndarray], list[int]]:
    image = Image.open(io.BytesIO(gif))
    assert (image.format, image.info["loop"]) == ("GIF", 0)  # for ever
    arrays, durations = [], []
    for number in range(image.n_frames):
        image.seek(number)
        arrays.append(np.asarray(image.convert("RGB")))
        durations.append(image.info["duration"])
    return arrays, durations


def test_a_gif_shows_every_frame_in_its_order_and_rests_on_the_last() -> None:
    animations: dict[str, Frames] = {}
    for number, value in enumerate((0.0, 0.2, 0.4, 1.0)):
        add_frames(animations, {"a": grey(value), **({"once": grey(0.5)} if number == 0 else {})})
    encoded = encode_animations(animations)
    assert encoded.keys() == {"a"}
    arrays, durations = frames_of(encoded["a"])
    assert [array[0, 0, 0] for array in arrays] == [0, 51, 102, 255]
    assert durations == [500, 500, 500, LAST_MILLISECONDS]


@pytest.mark.parametrize("count", [MOST_FRAMES + 1, 3 * MOST_FRAMES + 2])
def test_a_long_run_keeps_evenly_spread_frames_and_the_last_one(count: int) -> None:
    frames = Frames()
    for number in range(count):
        picture = grey(0.0, 1, 16)
        picture[0, :, 0] = [(number >> bit) & 1 for bit in range(16)]
        frames.add(picture)
    assert sum(len(frame) for frame in frames.kept) < 200 * MOST_FRAMES
    arrays, durations = frames_of(frames.encode())
    numbers = [sum(int(value > 127) << bit for bit, value in enumerate(array[0, :, 0])) for array in arrays]
    assert (numbers[0], numbers[-1], len(set(np.diff(numbers[:-1])))) == (0, count - 1, 1)
    assert MOST_FRAMES / 2 <= len(arrays) <= MOST_FRAMES + 1
    assert min(durations) >= 50
