"""How grey images become network inputs."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

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
