"""How grey images become network inputs."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from trainer.inference.preparation import Preparation
from trainer.objective import Batch


def centered_pixels(peak: int) -> Callable[[Batch], Batch]:
    """Return a transform that scales "inputs" from 0 .. peak to [-1, 1] in float32 and leaves the rest.

    The range is symmetric, so that a sign splits it at its middle.

    Args:
        peak: the brightest value, such as 255.
    """

    def transform(batch: Batch) -> Batch:
        return {**batch, "inputs": tf.cast(batch["inputs"], tf.float32) * (2.0 / peak) - 1.0}

    return transform


def pixel_preparation(shape: tuple[int, ...], peak: int, *, fit: str = "crop", axes: str | None = None) -> Preparation:
    """Return what `centered_pixels` does, for predictions later.

    Args:
        shape: of one input: height, width, channels.
        peak: the brightest raw value.
        fit: how image files are brought to the size.
        axes: of raw arrays; None for those of images, where grey ones lack the axis of channels.
    """
    return Preparation(shape, 2.0 / peak, -1.0, peak=peak, fit=fit, axes=axes or ("new" if shape[-1] == 1 else "last"))
