"""The sheet of nearest neighbours: who stands in it, in which frame, and the images as they are."""

from __future__ import annotations

import numpy as np

from hookline.recipes.metric_learning.retrieval_metrics import (
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


def test_neighbours_are_of_the_other_half_nearest_first():
    angles = np.array([0.0, 0.1, 0.3, 0.2, 0.1, 0.1])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    half = np.array([0, 1, 1, 1, 0, 1])
    found = nearest_neighbours(points, half, [0, 1], count=3)
    assert [each.tolist() for each in found] == [[1, 5, 3], [4, 0]]


def test_a_row_holds_the_query_and_its_neighbours_in_frames():
    queries, others = images(2, channels=1), images(4, channels=1, seed=1)
    sheet = neighbour_sheet(queries, [others[:2], others[2:]], [[True, False], [False, True]])
    assert sheet.dtype == np.float32
    assert sheet.shape == (2 * (SMALLEST + 2 * FRAME + GAP) + GAP, 3 * (SMALLEST + 2 * FRAME + GAP) + 3 * GAP, 3)
    assert RIGHT[1] > RIGHT[0] + 0.3  # green
    assert WRONG[0] > WRONG[1] + 0.3
    for row in range(2):
        np.testing.assert_allclose(inside(tile(sheet, row, 0)), np.broadcast_to((queries[row] + 1) / 2, (48, 48, 3)))
        for column, colour in enumerate((RIGHT, WRONG) if row == 0 else (WRONG, RIGHT), start=1):
            framed = tile(sheet, row, column)
            expected = (others[2 * row + column - 1] + 1) / 2
            np.testing.assert_allclose(inside(framed), np.broadcast_to(expected, (48, 48, 3)), rtol=1e-6)
            for edge in (framed[:FRAME], framed[-FRAME:], framed[:, :FRAME], framed[:, -FRAME:]):
                np.testing.assert_allclose(edge, np.broadcast_to(np.float32(colour), edge.shape))
