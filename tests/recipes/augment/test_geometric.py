"""Augmentations that move pixels: where each comes from, how far, and how often; maps move along."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookline.recipes.augment.color import Color
from hookline.recipes.augment.geometric import Rotate, moved_back, rotations, warp
from hookline.recipes.augment.mixing import Cutmix, Mixup
from hookline.recipes.augment.translation import Crop, Flip, Shift, translate
from tests.support.refusals import assert_refused

SIZES = st.tuples(st.integers(3, 9), st.integers(3, 9), st.integers(1, 3))
PROPERTY = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
FILL = -7.0


def offsets(moved: np.ndarray, original: np.ndarray) -> np.ndarray:
    """Return how far right and down one pixel of each image has moved, from values that occur once: [n, 2]."""
    found = []
    for image in moved[..., 0]:
        (y, x), *_ = np.argwhere(image != FILL)
        (from_y, from_x), *_ = np.argwhere(original[..., 0] == image[y, x])
        found.append((x - from_x, y - from_y))
    return np.array(found)


def test_every_shift_is_equally_likely(change, numbered):
    images = numbered(6_000, 10, 20)
    moved = offsets(change(Shift(share=0.1, fill=FILL), inputs=images)["inputs"], images[0])
    places, counts = np.unique(moved, axis=0, return_counts=True)
    assert {*map(tuple, places)} == {(right, down) for right in range(-2, 3) for down in range(-1, 2)}
    assert np.abs(counts - 400).max() < 5 * np.sqrt(400)


@PROPERTY
@given(size=SIZES, padding=st.integers(1, 2))
def test_crop_is_part_of_padded_image(size, padding, change, numbered):
    images = numbered(16, *size)
    for border, mode in (("reflect", "symmetric"), ("nearest", "edge"), ("constant", "constant")):
        more = {"constant_values": FILL} if border == "constant" else {}
        padded = np.pad(images[0], [(padding, padding), (padding, padding), (0, 0)], mode, **more)
        height, width = size[:2]
        parts = [
            padded[y : y + height, x : x + width].tobytes()
            for y in range(2 * padding + 1)
            for x in range(2 * padding + 1)
        ]
        moved = change(Crop(padding=padding, border=border, fill=FILL), inputs=images)["inputs"]
        assert all(image.tobytes() in parts for image in moved), border
        assert len({image.tobytes() for image in moved}) > 2


def test_horizontal_and_vertical_flips_are_independent(change, numbered):
    probability = 0.3
    images = numbered(6_000, 3, 4)
    moved = change(Flip(vertical=True, probability=probability), inputs=images)["inputs"]
    right, down = moved[:, 1, 0, 0] > moved[:, 1, 3, 0], moved[:, 0, 1, 0] > moved[:, 2, 1, 0]
    for image, mirrored, upset in zip(moved, right, down, strict=True):
        np.testing.assert_array_equal(image, images[0][:: -1 if upset else 1, :: -1 if mirrored else 1])
    deviation = 4 * math.sqrt(0.25 / 6_000)
    assert right.mean() == pytest.approx(probability, abs=deviation)
    assert down.mean() == pytest.approx(probability, abs=deviation)
    assert np.mean(right & down) == pytest.approx(probability**2, abs=deviation)


@PROPERTY
@given(size=SIZES, quarters=st.integers(-2, 2))
def test_rotation_by_quarter_turns_matches_rot90(size, quarters, numbered):
    side = size[0]
    images = numbered(2, side, side, size[2])
    maps = rotations(tf.fill([2], quarters * math.pi / 2), side, side)
    turned = warp(tf.constant(images), maps, "BILINEAR", "nearest", 0.0)
    np.testing.assert_allclose(turned, np.rot90(images, quarters, axes=(1, 2)), rtol=1e-4)
    if quarters == 0:
        np.testing.assert_array_equal(turned, images)


def test_rotation_angles_are_uniform_up_to_maximum(change):
    y, x = np.meshgrid(np.arange(41.0), np.arange(41.0), indexing="ij")
    spot = np.exp(-((x - 36) ** 2 + (y - 20) ** 2) / 2).astype(np.float32)[..., None]
    moved = change(Rotate(degrees=60.0, fill=0.0), inputs=np.repeat(spot[None], 2_000, axis=0))["inputs"][..., 0]
    weight = moved.sum((1, 2))
    angles = np.degrees(np.arctan2(20 - (moved * y).sum((1, 2)) / weight, (moved * x).sum((1, 2)) / weight - 20))
    assert -60.5 < angles.min() < -58.0
    assert 58.0 < angles.max() < 60.5
    counts = np.histogram(angles, 10, (-60, 60))[0]
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200)


def painted(box: np.ndarray, height: int, width: int) -> np.ndarray:
    marked = np.zeros([height, width], np.float32)
    top, left, tall, wide = box
    marked[top : top + tall, left : left + wide] = 1.0
    return marked


@PROPERTY
@given(size=SIZES, data=st.data())
@pytest.mark.parametrize(
    "augment",
    [Shift(share=0.4), Crop(padding=2, border="constant"), Flip(vertical=True)],
    ids=["shift", "crop", "flip"],
)
def test_maps_move_with_their_image(augment, size, data, change, numbered):
    height, width, _ = size
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = np.array([top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))])
    images, marked = numbered(12, *size), painted(box, height, width)
    inside = np.unique(images[0][marked > 0])
    moved = change(augment, inputs=images, map=np.repeat(marked[None], 12, axis=0))
    for image, where in zip(moved["inputs"], moved["map"], strict=True):
        np.testing.assert_array_equal(np.isin(image[..., 0], inside), where > 0)


def test_invalid_options_and_data_are_refused(change):
    for make, message in (
        (lambda: Crop(border="reflekt"), "'reflect'"),
        (lambda: Shift(share=1.1), "share=1.1"),
        (lambda: Flip(horizontal=False), "horizontal=false and vertical=false"),
        (lambda: Flip(probability=1), "probability=1"),
        (lambda: Color(brightness=0.0, contrast=0.0), "all 0"),
        (lambda: Mixup(alpha=0), "alpha=0"),
    ):
        assert_refused(message, make)
    images = np.linspace(-2, 2, 2 * 9 * 8, dtype=np.float32).reshape(2, 9, 8, 1)
    for augment, inputs, message in (
        (Crop(padding=8), images, "padding=8"),
        (Cutmix(), np.zeros([2, 5], np.float32), "Expected images"),
        (Color(hue=0.1), images, "3 channels"),
        (Color(), images, "from -2 to 2"),
        (Mixup(), np.zeros([2, 3], np.int32), "int32"),
    ):
        assert_refused(f"augment.mine: .*{message}", change, augment, inputs=inputs)


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3])),
    move=st.tuples(st.integers(-20, 20), st.integers(-20, 20)),
    border=st.sampled_from(["reflect", "constant", "nearest"]),
    dtype=st.sampled_from(["float32", "uint8", "int64"]),
)
def test_translation_matches_nearest_neighbor_warp(size, move, border, dtype):
    height, width, channels = size
    count = 2 * height * width * channels
    images = tf.constant(np.arange(count).reshape(2, *size) % 200, dtype)
    right, down = tf.constant([move[0], -1]), tf.constant([move[1], 0])
    expected = warp(tf.cast(images, tf.float32), moved_back(right, down), "NEAREST", border, 7.0)
    found = translate(images, -right, -down, border, 7.0)
    assert (found.dtype, found.shape) == (images.dtype, images.shape)
    np.testing.assert_array_equal(tf.cast(found, tf.float32), expected)


def test_map_targets_move_with_images_but_sequences_are_refused(change, numbered):
    images = numbered(200, 6, 6)
    for targets in (images.astype(np.int64), images[..., 0].astype(np.int64)):
        for augment in (Flip(vertical=True), Shift(share=0.3, fill=0.0)):
            moved = change(augment, inputs=images, targets=targets)
            assert (moved["inputs"] != images).any()
            np.testing.assert_array_equal(moved["targets"].reshape(images.shape), moved["inputs"])
    sequences = np.zeros([200, 4, 2], np.int64)
    assert_refused("cannot change targets", change, Flip(), inputs=images, targets=sequences)
