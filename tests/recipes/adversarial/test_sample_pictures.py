"""Pictures of samples show what they are given, at its place."""

from __future__ import annotations

import numpy as np
import pytest

from hookline.recipes.adversarial.sample_quality import GAP, LEFT, SAMPLE, SIDE, TOP, image_sheet, scatter_picture

MODES = np.array([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
REAL = MODES.copy()
RED = np.array(SAMPLE) / 255.0


def draw(samples) -> np.ndarray:
    return scatter_picture(np.array(samples, np.float32).reshape(-1, 2), REAL, MODES, 0.05, "Samples")


def red_pixels(picture: np.ndarray) -> np.ndarray:
    return np.argwhere(np.abs(picture - RED).max(axis=2) < 0.1)


def test_sample_is_drawn_at_its_place() -> None:
    low, span = -1.15 * 1.3, 2.3 * 1.3  # modes with three std around, and 15 % of the range on each side
    empty, far = draw([]), draw([[1e9, 0.0], [np.nan, 0.0], [0.0, np.inf]])
    assert len(red_pixels(empty)) == len(red_pixels(far)) == 0
    plot = slice(TOP - 2, TOP + SIDE + 2)
    np.testing.assert_array_equal(empty[plot], far[plot])  # how many are outside is said below
    places = red_pixels(draw([[0.5, -0.25]]))
    assert len(places)
    row, column = places.mean(axis=0) + 0.5
    assert column == pytest.approx(LEFT + SIDE * (0.5 - low) / span, abs=1.0)
    assert row == pytest.approx(TOP + SIDE * (1.0 - (-0.25 - low) / span), abs=1.0)


def test_sheet_puts_images_row_by_row_and_scales_and_enlarges_them() -> None:
    images = np.stack([np.full((32, 32, 1), value) for value in (-1.0, 0.0, 1.0, np.nan, 7.0)])
    sheet = image_sheet(images, columns=2)
    assert sheet.shape == (3 * (32 + GAP) + GAP, 2 * (32 + GAP) + GAP, 3)
    step, middle = 32 + GAP, GAP + 16
    found = [sheet[middle + row * step, middle + column * step, 0] for row in range(3) for column in range(2)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 0.0, 1.0, 1.0])  # the last place is empty paper
    image = np.full((1, 8, 8, 3), -1.0)
    image[0, 0, 7] = [1.0, 0.0, -1.0]
    corner = image_sheet(image)[GAP : GAP + 4, GAP + 28 : GAP + 32]
    np.testing.assert_allclose(corner, np.broadcast_to([1.0, 0.5, 0.0], (4, 4, 3)))
