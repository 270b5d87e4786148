"""What the augmentations share that mix examples: who is mixed with whom."""

from __future__ import annotations

import tensorflow as tf

from trainer.input.draws import uniform


def random_partners(seeds: tf.Tensor) -> tf.Tensor:
    """Return for each example another one's position in the batch: a random permutation, int32 [batch].

    Every order is equally likely, so an example may be its own partner. That is independent of how the batch is
    sorted, such as by class.

    Args:
        seeds: int32 [batch, 2].
    """
    return tf.argsort(uniform(seeds, "partner"), stable=True)
