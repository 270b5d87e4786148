"""Attention as a picture: a sheet with a column for each example."""

from __future__ import annotations

import numpy as np

SMALLEST = 96  # pixels a side of one image on the sheet, at least
GAP = 2
INK = np.array([[0.27, 0.00, 0.33], [0.23, 0.32, 0.55], [0.13, 0.57, 0.55], [0.37, 0.79, 0.38], [0.99, 0.91, 0.14]])


def attention_sheet(inputs: np.ndarray, attention: np.ndarray, draws: np.ndarray | None) -> np.ndarray:
    """Return rows of images, a column an example: the input, A as a heat map over it, and one draw of A.

    The heat map goes from violet (A = 0) over green to yellow (A = 1); the draw is white where the position is kept.

    Args:
        inputs: [examples, H, W, channels], any range: the sheet goes from their smallest to their largest value.
        attention: A, [examples, height, width], in [0, 1].
        draws: 0 or 1, of the same shape; None leaves that row out.

    Returns:
        float32 [height, width, 3] in [0, 1].
    """
    images = _colored(inputs)
    size = images.shape[1:3]
    heat = 0.5 * images + 0.5 * heat_colors(_stretched(attention, size))
    rows = [images, heat]
    if draws is not None:
        rows.append(np.repeat(_stretched(draws, size)[..., np.newaxis], 3, axis=-1))
    scale = -(-SMALLEST // min(size))
    return _tiled([np.kron(row, np.ones((1, scale, scale, 1))) for row in rows])


def heat_colors(values: np.ndarray) -> np.ndarray:
    """Return the colors of values: [..., 3] in [0, 1].

    Args:
        values: any shape, in [0, 1].
    """
    positions = np.linspace(0.0, 1.0, len(INK))
    return np.stack([np.interp(values, positions, INK[:, channel]) for channel in range(3)], axis=-1)


def _colored(inputs: np.ndarray) -> np.ndarray:
    """Return images of three channels in [0, 1]; of other than three, the mean stands for all."""
    images = inputs.astype(np.float64)
    low, high = images.min(), images.max()
    images = (images - low) / (high - low) if high > low else np.zeros_like(images)
    return images if images.shape[-1] == 3 else np.repeat(images.mean(axis=-1, keepdims=True), 3, axis=-1)


def _stretched(maps: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return maps of the images' size, by the nearest position."""
    rows, columns = (
        np.minimum(((np.arange(wanted) + 0.5) * given / wanted).astype(int), given - 1)
        for given, wanted in zip(maps.shape[1:3], size, strict=True)
    )
    return maps[:, rows][:, :, columns].astype(np.float64)


def _tiled(rows: list[np.ndarray]) -> np.ndarray:
    """Return images [examples, height, width, 3], row by row, on one white sheet."""
    examples, height, width, _ = rows[0].shape
    sheet = np.ones((len(rows) * (height + GAP) - GAP, examples * (width + GAP) - GAP, 3), np.float32)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            top, left = row * (height + GAP), column * (width + GAP)
            sheet[top : top + height, left : left + width] = image
    return sheet
