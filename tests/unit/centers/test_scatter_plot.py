"""The scatter plot: points where they belong, in the colours of their classes, whatever the numbers."""

from __future__ import annotations

import numpy as np

from hookline.hooks.centers.features import LEFT, SIDE, TOP, class_colour, scatter_plot

NO_CENTERS = np.full((3, 2), np.nan)


def area_of(picture: np.ndarray, label: int) -> np.ndarray:
    """Return the pixels [n, 2], as row and column, inside the frame that have the colour of a class."""
    inside = picture[TOP + 2 : TOP + SIDE - 1, LEFT + 2 : LEFT + SIDE - 1]
    near = np.abs(inside - np.array(class_colour(label)) / 255.0).max(axis=-1) < 0.01
    return np.argwhere(near) + np.array([TOP + 2, LEFT + 2])


def test_points_stand_at_their_places_on_one_scale_for_both_axes() -> None:
    points = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 5.0]])
    picture = scatter_plot(points, np.array([0, 1, 2]), NO_CENTERS, "")
    rows, columns = np.array([area_of(picture, label).mean(axis=0) for label in range(3)]).T
    unit = SIDE / 11.0  # the range is 10 with a margin of 5 % on both sides
    np.testing.assert_allclose(columns - columns[0], [0.0, 10 * unit, 0.0], atol=1.0)
    np.testing.assert_allclose(rows - rows[0], [0.0, 0.0, -5 * unit], atol=1.0)
    assert all(10 < len(area_of(picture, label)) < 60 for label in range(3))
