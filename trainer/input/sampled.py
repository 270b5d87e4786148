"""An order in which each class makes up a given share of the examples, still addressed by position."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.input.order import epoch_permutation, hashed_key, keyed_permutation, signed_seed
from trainer.input.source import HOST


class SampledOrder:
    """Choose examples so that classes come in given shares.

    An epoch draws as many examples as the split has. How many of each class is fixed, to within one: its share of the
    epoch. Where they stand in it is a permutation, of every epoch another. A class runs through its own examples again
    and again, each time in another order: so those of one class come equally often, small classes repeat and large ones
    are spread over several epochs.

    Everything follows from (seed, position) by the keyed permutations of `trainer/input/order.py`; nothing is stored
    but the rows of each class.

    Attributes:
        counts: how many examples of each class an epoch draws, int64 [classes].
    """

    def __init__(self, labels: np.ndarray, *, shares: np.ndarray, seed: int) -> None:
        """Sort the examples by class.

        Args:
            labels: class of each example of a split, integers [size] in [0, classes).
            shares: of the classes, [classes], 0 or more with a sum of 1; above 0 for classes with examples only.
            seed: of the order; the run's seed.

        Raises:
            UserError: a share is less than one example an epoch, or of a class without examples.
        """
        held = np.bincount(labels, minlength=shares.size)
        if empty := np.flatnonzero((shares > 0) & (held == 0)).tolist():
            raise UserError(
                f"Received a share of {shares[empty[0]]:g} for class {empty[0]}, of no example; expected 0."
            )
        self.counts = _apportioned(shares, labels.size)
        if lost := np.flatnonzero((shares > 0) & (self.counts == 0)).tolist():
            raise UserError(
                f"trainer.class_sampling gives class {lost[0]} a share of {shares[lost[0]]:g}, which is no whole "
                f"example among {labels.size}: it would never be drawn. Expected at least {1 / labels.size:.2g}."
            )
        self._size, self._seed = int(labels.size), signed_seed(seed)
        # Eager tensors, which traced functions capture: no graph holds a copy as a constant.
        with tf.init_scope(), tf.device(HOST):
            self._drawn = tf.constant(self.counts, tf.int64)
            self._ends = tf.constant(np.cumsum(self.counts), tf.int64)
            self._held = tf.constant(np.maximum(held, 1), tf.int64)
            self._starts = tf.constant(np.cumsum(held) - held, tf.int64)
            self._members = tf.constant(np.argsort(labels, kind="stable"), tf.int64)

    def __call__(self, position: tf.Tensor) -> tf.Tensor:
        """Return positions in the split: int64 [n].

        Args:
            position: int64 [n], counted from 0 at the start of training.
        """
        place = epoch_permutation(position, self._size, self._seed)
        label = tf.searchsorted(self._ends, place, side="right", out_type=tf.int64)
        drawn, held = tf.gather(self._drawn, label), tf.gather(self._held, label)
        within = place - (tf.gather(self._ends, label) - drawn)
        number = (position // self._size) * drawn + within  # of this draw among all draws of the class
        key = hashed_key(tf.zeros_like(label) + self._seed, label, number // held)
        example = keyed_permutation(number % held, held, key)
        return tf.gather(self._members, tf.gather(self._starts, label) + example)


def _apportioned(shares: np.ndarray, size: int) -> np.ndarray:
    """Return whole numbers [classes] that add up to `size`, as near to the shares as can be (largest remainders)."""
    exact = shares * size
    counts = np.floor(exact + 1e-9).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")[: size - counts.sum()]
    counts[largest] += 1
    return counts
