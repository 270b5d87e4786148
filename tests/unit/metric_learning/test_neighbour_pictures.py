"""The sheet of nearest neighbours: who stands in it, in which frame, and the images as they are."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.metric_learning.neighbour_pictures import (
    FRAME,
    GAP,
    RIGHT,
    SMALLEST,
    WRONG,
    nearest_neighbours,
    neighbour_sheet,
)


def images(count, height=SMALLEST, width=SMALLEST, channels=3, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, height, width, channels)).astype(np.float32)


def tile(sheet, row, column, height=SMALLEST, width=SMALLEST):
    """Return one framed image of a sheet; column 0 is the query, which a second gap parts from the others."""
    top = GAP + row * (height + 2 * FRAME + GAP)
    left = GAP + column * (width + 2 * FRAME + GAP) + (2 * GAP if column else 0)
    return sheet[top : top + height + 2 * FRAME, left : left + width + 2 * FRAME]


def inside(framed):
    return framed[FRAME:-FRAME, FRAME:-FRAME]


def test_neighbours_are_of_the_other_half_nearest_first_and_equals_in_order():
    angles = np.array([0.0, 0.1, 0.3, 0.2, 0.1, 0.1])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    half = np.array([0, 1, 1, 1, 0, 1])
    found = nearest_neighbours(points, half, [0, 1], count=3)
    assert [each.tolist() for each in found] == [[1, 5, 3], [4, 0]]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_row_holds_the_query_and_its_neighbours_in_frames_of_right_and_wrong(channels):
    queries, others = images(2, channels=channels), images(4, channels=channels, seed=1)
    sheet = neighbour_sheet(queries, [others[:2], others[2:]], [[True, False], [False, True]])
    assert sheet.dtype == np.float32
    assert sheet.shape == (2 * (SMALLEST + 2 * FRAME + GAP) + GAP, 3 * (SMALLEST + 2 * FRAME + GAP) + 3 * GAP, 3)
    assert sheet.min() >= 0.0
    assert sheet.max() <= 1.0
    for row in range(2):
        np.testing.assert_allclose(inside(tile(sheet, row, 0)), np.broadcast_to((queries[row] + 1) / 2, (48, 48, 3)))
        for column, colour in enumerate((RIGHT, WRONG) if row == 0 else (WRONG, RIGHT), start=1):
            framed = tile(sheet, row, column)
            expected = (others[2 * row + column - 1] + 1) / 2
            np.testing.assert_allclose(inside(framed), np.broadcast_to(expected, (48, 48, 3)), rtol=1e-6)
            for edge in (framed[:FRAME], framed[-FRAME:], framed[:, :FRAME], framed[:, -FRAME:]):
                np.testing.assert_allclose(edge, np.broadcast_to(np.float32(colour), edge.shape))


def test_green_is_right_and_red_is_wrong():
    assert RIGHT[1] > RIGHT[0] + 0.3
    assert WRONG[0] > WRONG[1] + 0.3


def test_small_images_are_enlarged_by_whole_pixels_and_large_ones_are_left():
    small = images(2, 8, 12)
    sheet = neighbour_sheet(small[:1], [small[1:]], [[True]])
    np.testing.assert_allclose(inside(tile(sheet, 0, 1, 48, 72))[::6, ::6], (small[1] + 1) / 2, rtol=1e-6)
    large = images(2, 96, 96)
    sheet = neighbour_sheet(large[:1], [large[1:]], [[True]])
    np.testing.assert_allclose(inside(tile(sheet, 0, 1, 96, 96)), (large[1] + 1) / 2, rtol=1e-6)


def test_a_query_with_fewer_neighbours_leaves_white_and_values_out_of_range_are_cut():
    others = 3.0 * images(3)
    sheet = neighbour_sheet(images(2), [others[:2], others[2:]], [[True, True], [True]])
    assert (tile(sheet, 1, 2) == 1.0).all()
    assert sheet.max() == 1.0
    alone = neighbour_sheet(images(1), [others[:0]], [[]])  # a gallery without any image
    np.testing.assert_allclose(inside(tile(alone, 0, 0)), (images(1)[0] + 1) / 2, rtol=1e-6)
