"""What the first layer of a network looks for in an image: its weights, as a sheet of small images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from trainer.network import Network

MOST_FILTERS = 64
SMALLEST = 24  # pixels a side: smaller filters are enlarged by a whole factor
GAP = 2
PAPER = 1.0
Shape = tuple[int | None, ...]


def first_kernel(network: Network) -> str | None:
    """Return the name of the first kernel of a network whose input is an image; None of one that cannot be shown.

    Args:
        network: any; its values are not read.
    """
    inputs = getattr(network.model, "inputs", None) or []  # a subclassed model has none
    kernels = ((name, each.shape) for name, each in network.trainable_variables.items() if len(each.shape) > 1)
    name, shape = next(kernels, (None, ()))
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[3] not in (1, 3):
        return None
    return name if _is_convolution(shape, inputs[0].shape[1:]) or _is_dense(shape, inputs[0].shape[1:]) else None


def first_filters(network: Network, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a picture of the first kernel of a network whose input is an image, by "filters/<layer>".

    A kernel of a convolution is a filter for each output channel; one of a dense layer has the weights of each unit in
    the places of the pixels. Zero is gray, and the largest weight of the layer black or white. At most 64 are shown.

    Args:
        network: any; nothing is returned of one without such a kernel.
        weights: what the forward pass uses, by variable name.

    Returns:
        float32 [height, width, 1 or 3] in [0, 1].
    """
    if (kernel := first_kernel(network)) is None:
        return {}
    values, image = np.asarray(weights[kernel], np.float32), network.model.inputs[0].shape[1:]
    filters = np.moveaxis(values if values.ndim == 4 else values.reshape(*image, -1), -1, 0)
    if not np.isfinite(filters).all():
        return {}
    return {f"filters/{kernel.rpartition('/')[0] or kernel}": _sheet(filters[:MOST_FILTERS])}


def _is_convolution(kernel: Shape, image: Shape) -> bool:
    """Return whether a kernel sees places of an image, and more than one pixel at a time."""
    return len(kernel) == 4 and kernel[2] == image[2] and kernel[:2] != (1, 1)


def _is_dense(kernel: Shape, image: Shape) -> bool:
    """Return whether a kernel has a row for each value of an image."""
    return len(kernel) == 2 and None not in image and kernel[0] == math.prod(side or 0 for side in image)


def _sheet(filters: np.ndarray) -> np.ndarray:
    """Return filters [n, height, width, channels] in rows on white, enlarged where they are small."""
    count, height, width, channels = filters.shape
    largest = float(np.abs(filters).max()) or 1.0
    times = max(1, -(-SMALLEST // min(height, width)))
    tiles = (0.5 + filters / (2.0 * largest)).repeat(times, axis=1).repeat(times, axis=2)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    cell = (height * times + GAP, width * times + GAP)
    sheet = np.full((rows * cell[0] + GAP, columns * cell[1] + GAP, channels), PAPER, np.float32)
    for index, tile in enumerate(tiles):
        top, left = GAP + index // columns * cell[0], GAP + index % columns * cell[1]
        sheet[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return np.clip(sheet, 0.0, 1.0)
