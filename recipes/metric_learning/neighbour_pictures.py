"""A sheet of images with their nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

NEIGHBOURS = 5
SMALLEST = 48  # pixels a side: smaller images are enlarged to at least this
FRAME, GAP = 3, 4  # pixels
RIGHT, WRONG = (0.1, 0.65, 0.2), (0.85, 0.1, 0.1)
PAPER = 1.0


def nearest_neighbours(
    embeddings: np.ndarray, half: np.ndarray, queries: Sequence[int], count: int = NEIGHBOURS
) -> list[np.ndarray]:
    """Return the positions of the nearest examples in the other half, nearest first, for each query.

    Args:
        embeddings: float32 [examples, d], of length 1.
        half: integers [examples]: the half of each example, see `halves`.
        queries: positions.
        count: at most so many for each.
    """
    found = []
    for query in queries:
        gallery = np.flatnonzero(half != half[query])
        similarity = embeddings[gallery] @ embeddings[query]
        found.append(gallery[np.argsort(-similarity, kind="stable")[:count]])
    return found


def neighbour_sheet(
    queries: np.ndarray, neighbours: Sequence[np.ndarray], correct: Sequence[Sequence[bool]]
) -> np.ndarray:
    """Return a picture: a row for each query, with the query to the left of its neighbours.

    Args:
        queries: float32 [queries, height, width, channels] in [-1, 1], 1 or 3 channels.
        neighbours: the same for the neighbours of each query, nearest first.
        correct: whether each neighbour is of the query's class: framed green, or else red.

    Returns:
        float32 [height, width, 3] in [0, 1].
    """
    widest = max(len(images) for images in neighbours)
    rows = []
    for query, images, right in zip(queries, neighbours, correct, strict=True):
        tiles = [_framed(query, (PAPER,) * 3)]
        tiles += [_framed(image, RIGHT if good else WRONG) for image, good in zip(images, right, strict=True)]
        tiles += [np.full_like(tiles[0], PAPER)] * (widest - len(images))
        # A wider gap parts the query from its neighbours.
        rows.append(_joined([tiles[0], _gap(tiles[0], GAP), *tiles[1:]], axis=1))
    return _joined(rows, axis=0)


def _framed(image: np.ndarray, colour: tuple[float, float, float]) -> np.ndarray:
    """Return an image as RGB in [0, 1], enlarged where it is small, in a frame."""
    pixels = np.clip((image.astype(np.float32) + 1.0) / 2.0, 0.0, 1.0)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    times = max(1, math.ceil(SMALLEST / min(pixels.shape[:2])))
    pixels = pixels.repeat(times, axis=0).repeat(times, axis=1)
    framed = np.empty((pixels.shape[0] + 2 * FRAME, pixels.shape[1] + 2 * FRAME, 3), np.float32)
    framed[:] = colour
    framed[FRAME:-FRAME, FRAME:-FRAME] = pixels
    return framed


def _joined(tiles: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Return tiles side by side (axis 1) or one below the other (axis 0), with gaps around each."""
    parts = [_gap(tiles[0], GAP, axis)]
    for tile in tiles:
        parts += [tile, _gap(tile, GAP, axis)]
    return np.concatenate(parts, axis=axis)


def _gap(tile: np.ndarray, pixels: int, axis: int = 1) -> np.ndarray:
    shape = list(tile.shape)
    shape[axis] = pixels
    return np.full(shape, PAPER, np.float32)
