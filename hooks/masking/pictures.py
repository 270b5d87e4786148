"""Masks as pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

LARGEST = 512  # pixels a side


def mask_pictures(masks: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Return one picture a mask, named "mask/<variable>": white where entries are kept, black where they are masked.

    Args:
        masks: bool variables by the name of the variable that they cover.
    """
    return {f"mask/{name}": mask_picture(mask.numpy()) for name, mask in masks.items()}


def mask_picture(mask: np.ndarray) -> np.ndarray:
    """Return a mask as a grey picture: a pixel an entry, or where that is too large, the kept share of its entries.

    Args:
        mask: bool, any rank of at least 1; the last axis becomes the columns, the others the rows.

    Returns:
        float32 [height, width, 1] in [0, 1], at most 512 pixels a side.
    """
    rows = mask.reshape(-1, mask.shape[-1]).astype(np.float32)
    for axis in (0, 1):
        rows = _shrink(rows, axis)
    return rows[..., np.newaxis]


def _shrink(values: np.ndarray, axis: int) -> np.ndarray:
    """Return means of neighbours along an axis, as many together as make it small enough."""
    count = math.ceil(values.shape[axis] / LARGEST)
    starts = np.arange(0, values.shape[axis], count)
    sums = np.add.reduceat(values, starts, axis=axis)
    sizes = np.diff([*starts, values.shape[axis]]).astype(np.float32)
    return sums / np.expand_dims(sizes, axis=1 - axis)
