"""Pictures of samples show what they are given, at its place."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.adversarial.sample_pictures import (
    GAP,
    HEIGHT,
    LEFT,
    SAMPLE,
    SIDE,
    TOP,
    WIDTH,
    image_sheet,
    scatter_picture,
    stacked_sheets,
)

MODES = np.array([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
REAL = MODES.copy()
RED = np.array(SAMPLE) / 255.0


def draw(samples) -> np.ndarray:
    return scatter_picture(np.array(samples, np.float32).reshape(-1, 2), REAL, MODES, 0.05, "Samples")


def red_pixels(picture: np.ndarray) -> np.ndarray:
    return np.argwhere(np.abs(picture - RED).max(axis=2) < 0.1)


def test_sample_is_drawn_at_its_place() -> None:
    low, span = -1.15 * 1.3, 2.3 * 1.3  # modes with three std around, and 15 % of the range on each side
    places = red_pixels(draw([[0.5, -0.25]]))
    assert len(places)
    row, column = places.mean(axis=0) + 0.5
    assert column == pytest.approx(LEFT + SIDE * (0.5 - low) / span, abs=1.0)
    assert row == pytest.approx(TOP + SIDE * (1.0 - (-0.25 - low) / span), abs=1.0)


def test_picture_is_in_range_of_one_size_and_its_frame_does_not_move_with_the_samples() -> None:
    empty, far = draw([]), draw([[1e9, 0.0], [np.nan, 0.0], [0.0, np.inf]])
    for picture in (empty, far):
        assert picture.shape == (HEIGHT, WIDTH, 3)
        assert picture.dtype == np.float32
        assert picture.min() >= 0.0
        assert picture.max() <= 1.0
        assert len(red_pixels(picture)) == 0
    plot = slice(TOP - 2, TOP + SIDE + 2)
    np.testing.assert_array_equal(empty[plot], far[plot])
    assert (empty != far).any()  # how many are outside is said below


def test_modes_and_real_points_are_shown_without_samples() -> None:
    with_modes = draw([])
    assert (with_modes[TOP + 3 : TOP + SIDE - 3] < 1.0).any()


def test_sheet_puts_images_row_by_row_and_scales_their_range() -> None:
    images = np.stack([np.full((32, 32, 1), value) for value in (-1.0, 0.0, 1.0, np.nan, 7.0)])
    sheet = image_sheet(images, columns=2)
    assert sheet.shape == (3 * (32 + GAP) + GAP, 2 * (32 + GAP) + GAP, 3)
    step, middle = 32 + GAP, GAP + 16
    found = [sheet[middle + row * step, middle + column * step, 0] for row in range(3) for column in range(2)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 0.0, 1.0, 1.0])  # the last place is empty paper


def test_sheet_keeps_colours_and_orientation_and_enlarges_small_images() -> None:
    image = np.full((1, 8, 8, 3), -1.0)
    image[0, 0, 7] = [1.0, 0.0, -1.0]
    sheet = image_sheet(image)
    assert sheet.shape == (32 + 2 * GAP, 32 + 2 * GAP, 3)
    np.testing.assert_allclose(sheet[GAP : GAP + 4, GAP + 28 : GAP + 32], np.broadcast_to([1.0, 0.5, 0.0], (4, 4, 3)))
    assert sheet[GAP + 4 : GAP + 32, GAP : GAP + 28].max() == 0.0


@pytest.mark.parametrize(("count", "rows", "columns"), [(1, 1, 1), (2, 1, 2), (9, 3, 3), (10, 3, 4)])
def test_sheet_is_about_square(count, rows, columns) -> None:
    sheet = image_sheet(np.zeros((count, 32, 32, 1)))
    assert sheet.shape[:2] == (rows * (32 + GAP) + GAP, columns * (32 + GAP) + GAP)


def test_stacked_sheets_lie_below_their_titles_on_one_width() -> None:
    narrow, wide = np.zeros((10, 40, 3), np.float32), np.full((20, 100, 3), 0.5, np.float32)
    picture = stacked_sheets([narrow, wide], ["first", "second"])
    assert picture.shape[1:] == (100, 3)
    top = next(row for row in range(len(picture)) if (picture[row, :40] == 0.0).all())
    assert (picture[top : top + 10, 40:] == 1.0).all()  # paper beside the narrow one
    assert (picture[-20:] == 0.5).all()
    for rows in (picture[:top], picture[top + 10 : -20]):
        assert rows.min() < 0.5
        assert rows.max() == 1.0
