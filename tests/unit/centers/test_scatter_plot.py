"""The scatter plot: points where they belong, in the colours of their classes, whatever the numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hooks.centers.palette import TEN_COLOURS, class_colour
from hooks.centers.scatter_plot import HEIGHT, LEFT, SIDE, TOP, WIDTH, _ticks, scatter_plot

NO_CENTERS = np.full((3, 2), np.nan)


def area_of(picture: np.ndarray, label: int) -> np.ndarray:
    """Return the pixels [n, 2], as row and column, inside the frame that have the colour of a class."""
    inside = picture[TOP + 2 : TOP + SIDE - 1, LEFT + 2 : LEFT + SIDE - 1]
    near = np.abs(inside - np.array(class_colour(label)) / 255.0).max(axis=-1) < 0.01
    return np.argwhere(near) + np.array([TOP + 2, LEFT + 2])


def test_the_picture_is_large_and_in_range() -> None:
    picture = scatter_plot(np.eye(2), np.array([0, 1]), np.zeros((2, 2)), "Title")
    assert picture.shape == (HEIGHT, WIDTH, 3)
    assert min(HEIGHT, WIDTH) >= 512
    assert picture.dtype == np.float32
    assert 0.0 <= picture.min() <= picture.max() == 1.0


def test_points_stand_at_their_places_on_one_scale_for_both_axes() -> None:
    points = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 5.0]])
    picture = scatter_plot(points, np.array([0, 1, 2]), NO_CENTERS, "")
    rows, columns = np.array([area_of(picture, label).mean(axis=0) for label in range(3)]).T
    unit = SIDE / 11.0  # the range is 10 with a margin of 5 % on both sides
    np.testing.assert_allclose(columns - columns[0], [0.0, 10 * unit, 0.0], atol=1.0)
    np.testing.assert_allclose(rows - rows[0], [0.0, 0.0, -5 * unit], atol=1.0)
    assert all(10 < len(area_of(picture, label)) < 60 for label in range(3))


def test_a_center_is_a_ring_with_a_number_beside_it_and_hides_no_point() -> None:
    points = np.array([[-10.0, -10.0], [10.0, 10.0], [0.0, 0.0]])
    labels = np.array([0, 1, 2])
    with_center = scatter_plot(points, labels, np.array([[0.0, 0.0]]), "")
    without = scatter_plot(points, labels, NO_CENTERS, "")
    changed = np.argwhere(np.abs(with_center - without).max(axis=-1) > 0.01) - [TOP + SIDE / 2, LEFT + SIDE / 2]
    assert np.abs(changed).max() < 30
    assert (np.hypot(*changed.T) > 5.0).all()  # the point in the middle of the ring
    assert ((changed[:, 0] < -9) & (changed[:, 1] > 9)).sum() > 20  # the number
    many = np.zeros((40, 2))
    unnumbered = scatter_plot(points, labels, many, "")
    assert (unnumbered != without).any(axis=-1).sum() < (with_center != without).any(axis=-1).sum()


def test_what_is_far_out_or_not_finite_or_all_equal_is_drawn_too() -> None:
    points = np.array([[np.nan, 0.0], [1e9, 1e9], [-1e9, np.inf], [0.0, 0.0]])
    picture = scatter_plot(points, np.array([0, 1, 2, 1]), NO_CENTERS, "")
    assert len(area_of(picture, 1))
    assert not len(area_of(picture, 0))
    assert not len(area_of(picture, 2))
    for equal in (np.zeros((4, 2)), np.full((4, 2), 1e-30), np.zeros((0, 2))):
        labels = np.zeros(len(equal), np.int64)
        assert np.isfinite(scatter_plot(equal, labels, NO_CENTERS, "")).all()


def test_many_classes_repeat_the_colours_and_the_legend_says_how_many_more() -> None:
    labels = np.arange(200)
    points = np.stack([np.cos(labels), np.sin(labels)], axis=-1) * labels[:, None]
    many = scatter_plot(points, labels, points, "")
    few = scatter_plot(points[:20], labels[:20], points[:20], "")
    beside = np.s_[:, LEFT + SIDE + 10 :]
    assert (many[beside] != few[beside]).any(axis=-1).sum() > 30  # the line "+ 180"
    assert class_colour(0) == class_colour(10) == TEN_COLOURS[0]


def test_ticks_are_a_few_round_numbers_within_the_range() -> None:
    assert _ticks(-1.1, 1.1) == pytest.approx([-1.0, -0.5, 0.0, 0.5, 1.0])
    assert _ticks(0.0, 37.0) == [0.0, 10.0, 20.0, 30.0]
    for low, high in ((-3e-9, 2e-8), (1e6, 1e6 + 1), (-7.3, 912.0)):
        ticks = _ticks(low, high)
        assert 2 <= len(ticks) <= 7
        assert low <= min(ticks) <= max(ticks) <= high


def as_seen(colour: tuple[int, int, int], matrix: np.ndarray | None) -> np.ndarray:
    linear = (np.array(colour) / 255.0) ** 2.2
    seen = linear if matrix is None else np.clip(matrix @ linear, 0.0, 1.0)
    return 255.0 * seen ** (1 / 2.2)


# Machado, Oliveira and Fernandes 2009, severity 1.0.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)


@pytest.mark.parametrize("matrix", [None, DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"])
def test_ten_colours_stay_apart_from_each_other_and_from_white(matrix) -> None:
    seen = [as_seen(colour, matrix) for colour in (*TEN_COLOURS, (255, 255, 255))]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 35.0
