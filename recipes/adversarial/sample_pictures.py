"""Pictures of generated samples: points over the modes of a mixture, and sheets of images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 600, 640
LEFT, TOP, SIDE = 20, 44, 560  # the square that the points lie in
FINER = 2  # drawn so many times as large, then shrunk: smooth edges
WITHIN = 3.0  # standard deviations: the radius of a mode's circle
MARGIN = 0.15  # of the range, around the outermost modes and real points
REAL_DOT, DOT = 1.5, 2.0  # radii
REAL, SAMPLE, MODE, FRAME, WHITE = (190, 190, 190), (204, 51, 17), (0, 68, 136), (110, 110, 110), (255, 255, 255)
SMALLEST = 32  # pixels a side: smaller images are enlarged to at least this
GAP = 2  # pixels between images
TITLE = 22  # pixels for a line of text


def scatter_picture(samples: np.ndarray, real: np.ndarray, modes: np.ndarray, std: float, title: str) -> np.ndarray:
    """Return a picture of generated points over real ones, with a circle of three standard deviations at each mode.

    The frame holds the modes and the real points with a margin; it does not move with the samples, so that pictures of
    one run make an animation. Samples outside are counted below the plot.

    Args:
        samples: floats [n, 2]; those that are not finite are outside.
        real: floats [m, 2], grey below the samples; few are enough.
        modes: floats [modes, 2].
        std: standard deviation of a mode.
        title: one line above the plot.

    Returns:
        float32 [640, 600, 3] in [0, 1].
    """
    low, span = _range(np.concatenate([modes - WITHIN * std, modes + WITHIN * std, real]))
    inside = np.isfinite(samples).all(axis=1)
    inside[inside] = np.all((samples[inside] >= low) & (samples[inside] <= low + span), axis=1)
    image = Image.new("RGB", (WIDTH * FINER, HEIGHT * FINER), WHITE)
    draw = ImageDraw.Draw(image)
    for points, radius, colour in ((real, REAL_DOT, REAL), (samples[inside], DOT, SAMPLE)):
        for x, y in _to_pixels(points, low, span):
            draw.ellipse(_box(x, y, radius), fill=colour)
    for x, y in _to_pixels(modes, low, span):
        draw.ellipse(_box(x, y, WITHIN * std / span * SIDE), outline=MODE, width=FINER)
    draw.rectangle([each * FINER for each in (LEFT, TOP, LEFT + SIDE, TOP + SIDE)], outline=FRAME, width=FINER)
    _text(draw, LEFT, TOP - 14, title)
    outside = len(samples) - int(inside.sum())
    _text(draw, LEFT, TOP + SIDE + 24, f"{len(samples):,} samples, {outside:,} outside the picture")
    return np.asarray(image.resize((WIDTH, HEIGHT), Image.Resampling.BOX), np.float32) / 255.0


def _range(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lower corner and the side of a square around all points."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = float((high - low).max()) * (1.0 + 2.0 * MARGIN) or 1.0
    return (low + high) / 2.0 - span / 2.0, span


def _to_pixels(points: np.ndarray, low: np.ndarray, span: float) -> list[tuple[float, float]]:
    return [(LEFT + SIDE * x, TOP + SIDE * (1.0 - y)) for x, y in ((points - low) / span).tolist()]


def _box(x: float, y: float, radius: float) -> tuple[float, float, float, float]:
    return (x - radius) * FINER, (y - radius) * FINER, (x + radius) * FINER, (y + radius) * FINER


def _text(draw: ImageDraw.ImageDraw, x: float, y: float, text: str) -> None:
    draw.text((x * FINER, y * FINER), text, (0, 0, 0), ImageFont.load_default(16 * FINER), anchor="ls")


def image_sheet(images: np.ndarray, columns: int | None = None) -> np.ndarray:
    """Return images side by side, row by row from the upper left.

    Args:
        images: floats [n, height, width, 1 or 3] in [-1, 1], n at least 1; other values are clipped, NaN is black.
        columns: in a row; None for about as many as rows.

    Returns:
        float32 [height, width, 3] in [0, 1].
    """
    columns = min(columns or math.ceil(math.sqrt(len(images))), len(images))
    times = max(1, math.ceil(SMALLEST / min(images.shape[1:3])))
    pixels = np.clip((np.nan_to_num(images.astype(np.float32), nan=-1.0) + 1.0) / 2.0, 0.0, 1.0)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3)).repeat(times, axis=1).repeat(times, axis=2)
    height, width = pixels.shape[1] + GAP, pixels.shape[2] + GAP
    sheet = np.ones((math.ceil(len(images) / columns) * height + GAP, columns * width + GAP, 3), np.float32)
    for index, tile in enumerate(pixels):
        top, left = index // columns * height + GAP, index % columns * width + GAP
        sheet[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return sheet


def stacked_sheets(sheets: Sequence[np.ndarray], titles: Sequence[str]) -> np.ndarray:
    """Return pictures below one another, each with its title above, such as one sheet for each generator.

    Args:
        sheets: float32 [height, width, 3] in [0, 1], at least one.
        titles: one line for each.

    Returns:
        float32 [height, width, 3] in [0, 1].
    """
    widest = max(sheet.shape[1] for sheet in sheets)
    parts = []
    for sheet, title in zip(sheets, titles, strict=True):
        line = Image.new("RGB", (widest, TITLE), WHITE)
        ImageDraw.Draw(line).text((GAP, TITLE - 5), title, (0, 0, 0), ImageFont.load_default(14), anchor="ls")
        parts.append(np.asarray(line, np.float32) / 255.0)
        parts.append(np.pad(sheet, [(0, 0), (0, widest - sheet.shape[1]), (0, 0)], constant_values=1.0))
    return np.concatenate(parts)
