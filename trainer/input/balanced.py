"""Batches of P classes with K examples each, still addressed by their step."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainer.errors import UserError
from trainer.input.order import hashed_key, keyed_permutation, signed_seed
from trainer.input.source import HOST


class BalancedOrder:
    """Choose the examples of a step: P classes that differ, and K examples of each that differ.

    The steps run through the classes in rounds. A round is a permutation of all classes, cut into steps of P; where P
    does not divide their number, the classes at its end are left out, others in every round. A class runs through its
    examples in the same way, K a round. So classes come equally often however large they are, and so do the examples
    within a class. A class of fewer than K examples repeats some.

    Everything follows from (seed, step) by the keyed permutations of `trainer/input/order.py`; nothing is stored but
    the rows of each class.

    Attributes:
        classes_per_batch: P.
        examples_per_class: K.
    """

    def __init__(self, labels: np.ndarray, *, classes_per_batch: int, batch_size: int, seed: int) -> None:
        """Sort the examples by class.

        Args:
            labels: class of each example of a split, integers [size]. Classes without an example do not count.
            classes_per_batch: P, at least 1.
            batch_size: P times K.
            seed: of the order; the run's seed.

        Raises:
            UserError: there are fewer classes than P, or the batch size is not a multiple of P.
        """
        if batch_size % classes_per_batch:
            raise UserError(
                f"Received batch size {batch_size} and classes_per_batch={classes_per_batch}; expected a multiple, "
                "since each class gets equally many examples."
            )
        present, counts = np.unique(labels, return_counts=True)
        if classes_per_batch > present.size:
            raise UserError(
                f"Received classes_per_batch={classes_per_batch} for examples of {present.size} classes; "
                f"expected 1..{present.size}."
            )
        self.classes_per_batch = classes_per_batch
        self.examples_per_class = batch_size // classes_per_batch
        self._classes = int(present.size)
        self._seed = signed_seed(seed)
        # Eager tensors, which traced functions capture: no graph holds a copy as a constant.
        with tf.init_scope(), tf.device(HOST):
            self._counts = tf.constant(counts, tf.int64)
            self._starts = tf.constant(np.cumsum(counts) - counts, tf.int64)
            self._members = tf.constant(np.argsort(labels, kind="stable"), tf.int64)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return positions in the split, class by class: int64 [batch].

        Args:
            step: int64 scalar, batches drawn before this one.
        """
        steps_per_round = self._classes // self.classes_per_batch
        round_number = step // steps_per_round
        chosen = tf.repeat(self._choose_classes(round_number, step % steps_per_round), self.examples_per_class)
        count = tf.gather(self._counts, chosen)
        # A class of n examples makes n // K rounds with one permutation; what is left at its end waits for the next.
        rounds = tf.maximum(count // self.examples_per_class, 1)
        within = tf.tile(tf.range(self.examples_per_class, dtype=tf.int64), [self.classes_per_batch])
        place = (round_number % rounds) * self.examples_per_class + within
        key = hashed_key(tf.zeros_like(chosen) + self._seed, chosen, round_number // rounds)
        example = keyed_permutation(place % count, count, key)
        return tf.gather(self._members, tf.gather(self._starts, chosen) + example)

    def _choose_classes(self, round_number: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        """Return which classes a part of a round holds, as numbers in [0, present classes): int64 [P]."""
        place = part * self.classes_per_batch + tf.range(self.classes_per_batch, dtype=tf.int64)
        same = tf.zeros_like(place)
        return keyed_permutation(place, self._classes, hashed_key(same + self._seed, same + round_number))
