"""Pictures that evaluations draw: sheets of images, and points of the plane."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

TITLE, MARGIN = 22, 2  # pixels: the height of a line of text, and what is left of it


def enlarged(images: np.ndarray, smallest: int) -> np.ndarray:
    """Return images in [-1, 1] as RGB in [0, 1], each pixel repeated until a side has so many; NaN is black."""
    times = max(1, math.ceil(smallest / min(images.shape[1:3])))
    pixels = np.clip((np.nan_to_num(images.astype(np.float32), nan=-1.0) + 1.0) / 2.0, 0.0, 1.0)
    return np.broadcast_to(pixels, (*pixels.shape[:3], 3)).repeat(times, axis=1).repeat(times, axis=2)


def stacked_sheets(sheets: Sequence[np.ndarray], titles: Sequence[str]) -> np.ndarray:
    """Return pictures of one width below one another, each with its title above."""
    parts = []
    for each, title in zip(sheets, titles, strict=True):
        line = Image.new("RGB", (each.shape[1], TITLE), "white")
        ImageDraw.Draw(line).text((MARGIN, TITLE - 5), title, "black", ImageFont.load_default(14), anchor="ls")
        parts += [np.asarray(line, np.float32) / 255.0, each]
    return np.concatenate(parts)


def scatter_picture(samples: np.ndarray, real: np.ndarray, modes: np.ndarray, radius: float, title: str) -> np.ndarray:
    """Return a picture of samples over real points, with a circle around each mode; samples do not move the frame."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # not needed to train
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    shown = np.concatenate([modes - radius, modes + radius, real])
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, half = (low + high) / 2.0, 0.65 * float((high - low).max()) or 0.5
    inside = np.all(np.abs(samples - middle) <= half, axis=1)  # which no NaN is
    figure = Figure((6.0, 6.4), dpi=100)
    axes = figure.add_axes((0.03, 0.05, 0.94, 0.88), xticks=[], yticks=[], title=title)
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    axes.scatter(real[:, 0], real[:, 1], s=5, color="silver", linewidths=0)
    axes.scatter(samples[inside, 0], samples[inside, 1], s=8, color="orangered", linewidths=0)
    for mode in modes:
        axes.add_patch(Circle((mode[0], mode[1]), radius, fill=False, edgecolor="navy"))
    axes.set_xlabel(f"{len(samples):,} samples, {int((~inside).sum()):,} outside the picture")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), np.float32)[..., :3] / 255.0
