"""Animations: every frame in its order, small in memory, readable by others."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from hooks.monitors.animation import LAST_MILLISECONDS, MOST_FRAMES, Frames, add_frames, encode_animations


def grey(value: float, height: int = 4, width: int = 6) -> np.ndarray:
    return np.full((height, width, 1), value, np.float32)


def frames_of(gif: bytes) -> tuple[list[np.ndarray], list[int]]:
    image = Image.open(io.BytesIO(gif))
    assert image.format == "GIF"
    assert image.info["loop"] == 0  # for ever
    arrays, durations = [], []
    for number in range(image.n_frames):
        image.seek(number)
        arrays.append(np.asarray(image.convert("RGB")))
        durations.append(image.info["duration"])
    return arrays, durations


def test_a_gif_shows_every_frame_in_its_order_and_rests_on_the_last() -> None:
    values = [0.0, 0.2, 0.4, 1.0]
    animations: dict[str, Frames] = {}
    for value in values:
        add_frames(animations, {"a": grey(value)})
    arrays, durations = frames_of(encode_animations(animations)["a"])
    assert [array[0, 0, 0] for array in arrays] == [0, 51, 102, 255]
    assert all(array.shape == (4, 6, 3) for array in arrays)
    assert durations == [500, 500, 500, LAST_MILLISECONDS]


def test_colours_survive() -> None:
    picture = np.zeros((8, 8, 3), np.float32)
    picture[:4, :, 0], picture[4:, :, 2] = 1.0, 0.6
    frames = Frames()
    frames.add(picture)
    frames.add(1.0 - picture)
    arrays, _ = frames_of(frames.encode())
    np.testing.assert_allclose(arrays[0] / 255.0, picture, atol=0.01)
    np.testing.assert_allclose(arrays[1] / 255.0, 1.0 - picture, atol=0.01)


@pytest.mark.parametrize("count", [MOST_FRAMES, MOST_FRAMES + 1, 3 * MOST_FRAMES + 2])
def test_a_long_run_keeps_evenly_spread_frames_and_the_last_one(count: int) -> None:
    frames = Frames()
    for number in range(count):
        picture = grey(0.0, 1, 16)
        picture[0, :, 0] = [(number >> bit) & 1 for bit in range(16)]
        frames.add(picture)
    assert len(frames.kept) <= MOST_FRAMES
    assert sum(len(frame) for frame in frames.kept) < 200 * MOST_FRAMES
    arrays, durations = frames_of(frames.encode())
    numbers = [sum(int(value > 127) << bit for bit, value in enumerate(array[0, :, 0])) for array in arrays]
    steps = np.diff(numbers[:-1])
    assert numbers[0] == 0
    assert numbers[-1] == count - 1
    assert (steps == steps[0]).all()
    assert len(arrays) >= MOST_FRAMES / 2
    assert min(durations) >= 50


def test_frames_of_other_sizes_are_shown_whole() -> None:
    frames = Frames()
    frames.add(grey(1.0, 4, 6))
    frames.add(grey(1.0, 8, 3))
    arrays, _ = frames_of(frames.encode())
    assert [array.shape for array in arrays] == [(8, 6, 3)] * 2
    assert arrays[0][:4].min() == 255
    assert arrays[0][4:].max() == 0
    assert arrays[1][:, :3].min() == 255


def test_a_picture_that_was_shown_once_is_no_animation() -> None:
    animations: dict[str, Frames] = {}
    add_frames(animations, {"once": grey(0.5), "twice": grey(0.5)})
    add_frames(animations, {"twice": grey(0.6)})
    assert encode_animations(animations).keys() == {"twice"}
