"""Cluttered digits: where each lies is known, fragments come from others of its split, and nothing ever changes."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from hookline.recipes.data.cluttered import Clutter, cluttered, place_on_canvases
from hookline.recipes.data.digits import digits
from tests.support.batches import whole
from tests.support.refusals import assert_refused


def in_the_box(batch):
    """What each canvas shows in its box."""
    pairs = zip(batch["inputs"], batch["box"], strict=True)
    return np.stack([canvas[top : top + height, left : left + width] for canvas, (top, left, height, width) in pairs])


def flat_images(count, side=6):
    """Images of one grey value each: 1, 2, 3, ..."""
    return np.broadcast_to(np.arange(1, count + 1, dtype=np.uint8)[:, None, None], (count, side, side))


@pytest.fixture(scope="module")
def plain():
    return cluttered()


def test_the_batch_has_inputs_targets_map_and_box(plain):
    assert (plain.train.size, plain.validation.size, plain.test.size) == (1258, 180, 359)
    assert (plain.input_shape, plain.classes) == ((20, 20, 1), 10)
    batch = whole(plain.test)
    found = {name: (batch[name].shape, batch[name].dtype) for name in ("inputs", "targets", "map", "box")}
    assert found == {
        "inputs": ((359, 20, 20, 1), np.float32),
        "targets": ((359,), np.int64),
        "map": ((359, 20, 20), np.float32),
        "box": ((359, 4), np.int64),
    }
    assert (batch["inputs"].min(), batch["inputs"].max()) == (-1, 1)
    for inside, (top, left, height, width) in zip(batch["map"], batch["box"], strict=True):
        expected = np.zeros((20, 20))
        expected[top : top + height, left : left + width] = 1
        np.testing.assert_array_equal(inside, expected)
        assert expected.sum() == height * width == 64
    assert plain.test.source.bytes == 359 * (20 * 20 + 8 + 4 * 8), "canvases are held as bytes"


def test_fragments_add_to_the_image_by_maximum_and_leave_it_in_its_place(plain):
    batch, bare = whole(plain.test), whole(cluttered(fragments=0).test)
    source = whole(digits().test)  # without fragments the box shows the image, and the rest is black
    np.testing.assert_array_equal(in_the_box(bare), source["inputs"])
    np.testing.assert_array_equal(bare["targets"], source["targets"])
    assert (bare["inputs"][..., 0][bare["map"] == 0] == -1).all()
    np.testing.assert_array_equal(batch["box"], bare["box"])
    assert (batch["inputs"] >= bare["inputs"]).all()
    covered = (batch["inputs"] > bare["inputs"]).mean(axis=(1, 2, 3))
    assert (covered > 0).mean() > 0.99
    assert 0.05 < covered.mean() < 8 * 9 / 400


def test_a_fragment_comes_from_every_other_image_and_never_its_own():
    count = 5
    rows = np.repeat(np.arange(count), 3000)
    canvases, boxes = place_on_canvases(flat_images(count), rows, Clutter(20, 1, 3), seed=0, stream=0)
    for canvas, (top, left, height, width) in zip(canvases, boxes, strict=True):
        canvas[top : top + height, left : left + width] = 0
    donors = canvases.max(axis=(1, 2)).astype(int)  # 0 where the fragment lies under the image
    for own in range(count):
        seen = np.bincount(donors[rows == own], minlength=count + 1)[1:]
        others = np.delete(seen, own)
        assert seen[own] == 0
        np.testing.assert_allclose(others / others.sum(), 1 / (count - 1), atol=0.05)


def test_canvases_never_change_between_versions():
    rows = np.arange(50) % 7
    canvases, boxes = place_on_canvases(flat_images(7), rows, Clutter(16, 4, 3), seed=3, stream=1)
    assert boxes[:4].tolist() == [[2, 8, 6, 6], [4, 1, 6, 6], [3, 5, 6, 6], [4, 6, 6, 6]]
    assert zlib.crc32(canvases.tobytes()) == 1047076830


def test_settings_out_of_range_are_refused():
    for settings, message in (
        ({"path": "a.npz"}, "Set data.source=mnist"),
        ({"canvas": 8}, "data.canvas=8 .*at least 9"),
        ({"fragment_size": 9}, "data.fragment_size=9 .*1..8"),
        ({"validation_examples": 1}, "data.fragments=0"),
    ):
        assert_refused(message, cluttered, **settings)
    assert cluttered(validation_examples=1, fragments=0).validation.size == 1
