"""A scatter plot of features and class centers, drawn without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hooks.centers.palette import class_colour

WIDTH, HEIGHT = 720, 640
LEFT, TOP, SIDE = 64, 44, 560  # the square that the points lie in
FINER = 2  # drawn so many times as large, then shrunk: smooth edges
DOT, RING = 3.0, 9.0  # radii of examples and centers
MARGIN = 0.05  # of the range, around the outermost points
MOST_NUMBERED = 30  # centers beyond this many have no number beside them
MOST_LISTED = 20  # classes in the legend
BLACK, GREY, WHITE = (0, 0, 0), (110, 110, 110), (255, 255, 255)


def scatter_plot(points: np.ndarray, labels: np.ndarray, centers: np.ndarray, title: str) -> np.ndarray:
    """Return a picture of points in the colours of their classes, with the centers as numbered rings.

    Both axes have one scale, so distances compare in every direction. Points that are not finite are left out.

    Args:
        points: [n, 2].
        labels: integers [n], 0 or more.
        centers: [classes, 2].
        title: one line above the plot.

    Returns:
        float32 [640, 720, 3] in [0, 1].
    """
    finite = np.isfinite(points).all(axis=1)
    points, labels = points[finite], labels[finite]
    shown = np.flatnonzero(np.isfinite(centers).all(axis=1))
    low, span = _range(np.concatenate([points, centers[shown]]))
    image = Image.new("RGB", (WIDTH * FINER, HEIGHT * FINER), WHITE)
    draw = ImageDraw.Draw(image)
    for (x, y), label in zip(_to_pixels(points, low, span), labels.tolist(), strict=True):
        _disc(draw, x, y, DOT, fill=class_colour(label))
    _draw_centers(draw, _to_pixels(centers[shown], low, span), shown.tolist())
    _draw_frame(draw, low, span, title)
    _draw_legend(draw, np.unique(labels).tolist())
    image = image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    return np.asarray(image, np.float32) / 255.0


def _range(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lower corner and the side of a square around all points."""
    if not len(points):
        return np.array([-1.0, -1.0]), 2.0
    low, high = points.min(axis=0), points.max(axis=0)
    span = float((high - low).max()) * (1.0 + 2.0 * MARGIN) or 1.0
    return (low + high) / 2.0 - span / 2.0, span


def _to_pixels(points: np.ndarray, low: np.ndarray, span: float) -> list[tuple[float, float]]:
    relative = (points - low) / span
    return [(LEFT + SIDE * x, TOP + SIDE * (1.0 - y)) for x, y in relative.tolist()]


def _disc(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, **style: object) -> None:
    box = [(x - radius) * FINER, (y - radius) * FINER, (x + radius) * FINER, (y + radius) * FINER]
    draw.ellipse(box, **style)  # type: ignore[arg-type]


def _draw_centers(draw: ImageDraw.ImageDraw, places: Sequence[tuple[float, float]], labels: Sequence[int]) -> None:
    """Draw a ring around each center, through which its examples are seen, and the number of its class beside it."""
    for x, y in places:
        _disc(draw, x, y, RING, outline=BLACK, width=2 * FINER)
        _disc(draw, x, y, RING - 2.0, outline=WHITE, width=FINER)
    for (x, y), label in zip(places, labels if len(labels) <= MOST_NUMBERED else [], strict=False):
        _text(draw, x + RING, y - RING, str(label), 15, anchor="lb", halo=2)


def _draw_frame(draw: ImageDraw.ImageDraw, low: np.ndarray, span: float, title: str) -> None:
    right, bottom = LEFT + SIDE, TOP + SIDE
    draw.rectangle([each * FINER for each in (LEFT, TOP, right, bottom)], outline=GREY, width=FINER)
    _text(draw, LEFT, TOP - 14, title, 16, anchor="ls")
    for value in _ticks(low[0], low[0] + span):
        x = LEFT + SIDE * (value - low[0]) / span
        draw.line([(x * FINER, bottom * FINER), (x * FINER, (bottom + 5) * FINER)], fill=GREY, width=FINER)
        _text(draw, x, bottom + 9, f"{value:.4g}", 13, anchor="mt")
    for value in _ticks(low[1], low[1] + span):
        y = bottom - SIDE * (value - low[1]) / span
        draw.line([((LEFT - 5) * FINER, y * FINER), (LEFT * FINER, y * FINER)], fill=GREY, width=FINER)
        _text(draw, LEFT - 9, y, f"{value:.4g}", 13, anchor="rm")


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers within a range."""
    rough = (high - low) / 5.0
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(each for each in (1.0, 2.0, 5.0, 10.0) if each * power >= rough)
    return [float(number) * step + 0.0 for number in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


def _draw_legend(draw: ImageDraw.ImageDraw, labels: Sequence[int]) -> None:
    for row, label in enumerate(labels[:MOST_LISTED]):
        y = TOP + 12 + 26 * row
        _disc(draw, LEFT + SIDE + 24, y, 7.0, fill=class_colour(label))
        _text(draw, LEFT + SIDE + 38, y, str(label), 15, anchor="lm")
    if len(labels) > MOST_LISTED:
        _text(draw, LEFT + SIDE + 17, TOP + 12 + 26 * MOST_LISTED, f"+ {len(labels) - MOST_LISTED}", 15, anchor="lm")


def _text(draw: ImageDraw.ImageDraw, x: float, y: float, text: str, size: int, anchor: str, halo: int = 0) -> None:
    """Draw text, with a white halo of so many pixels where it may lie over points."""
    font = ImageFont.load_default(size * FINER)
    place = x * FINER, y * FINER
    draw.text(place, text, BLACK, font, anchor=anchor, stroke_width=halo * FINER, stroke_fill=WHITE)
