"""Batches by class: balanced, or with given shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.trainer.config.schema import BALANCED
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.order import epoch_permutation, hashed_key, keyed_permutation, signed_seed
from hookline.trainer.input.source import HOST

Setting = str | Mapping[Any, float]


def class_weights(setting: Setting, labels: np.ndarray, classes: int, names: Sequence[str] = ()) -> np.ndarray:
    """Return the weight of each class's loss.

    "balanced" gives a class of n of all N examples, among C classes that have any, the weight N / (C n).
    """
    counts = np.bincount(labels, minlength=classes)
    if setting == BALANCED:
        return (labels.size / (np.count_nonzero(counts) * np.maximum(counts, 1))).astype(np.float32)
    weights = np.ones(classes, np.float32)
    for label, value in by_label("trainer.class_weights", setting, classes, names).items():
        weights[label] = value
    if not np.any(weights[counts > 0]):
        raise UserError("trainer.class_weights is 0 for every class of the training examples. Expected one above 0.")
    return weights


def class_shares(setting: Setting, labels: np.ndarray, classes: int, names: Sequence[str] = ()) -> np.ndarray:
    """Return the share that each class makes up of the examples that training draws."""
    counts = np.bincount(labels, minlength=classes)
    if setting == BALANCED:
        return (counts > 0) / np.count_nonzero(counts)
    given = by_label("trainer.class_sampling", setting, classes, names)
    for label in given:
        if not counts[label]:
            raise UserError(f"trainer.class_sampling names class {label}, which has no training example. Leave it out.")
    total, rest = sum(given.values()), counts.astype(np.float64)
    rest[list(given)] = 0
    complete = not rest.any()
    if total > 1 + 1e-6 or (complete and total < 1 - 1e-6) or (not complete and total > 1 - 1e-6):
        expected = "1, since it names all classes" if complete else "less than 1, to leave some to the other classes"
        raise UserError(f"trainer.class_sampling has shares that add up to {total:g}. Expected {expected}.")
    shares = rest * ((1 - total) / max(rest.sum(), 1))
    for label, share in given.items():
        shares[label] = share
    return shares / shares.sum()


def by_label(key: str, setting: Setting, classes: int, names: Sequence[str]) -> dict[int, float]:
    """Return a setting's values by class label."""
    labels = {**{str(label): label for label in range(classes)}, **{name: i for i, name in enumerate(names)}}
    found: dict[int, float] = {}
    for each, value in dict(setting).items():  # type: ignore[arg-type]
        if str(each) not in labels:
            if names:
                raise unknown_name(f"class in {key}", str(each), names)
            raise UserError(f"{key} names class {each}, which the data has not. Expected 0..{classes - 1}.")
        if labels[str(each)] in found:
            raise UserError(f"{key} names class {labels[str(each)]} twice. Expected each class once.")
        found[labels[str(each)]] = float(value)
    return found


class _ByClass:
    """Take examples of classes: each class runs through its own again and again, each time in a new order."""

    def __init__(self, labels: np.ndarray, counts: np.ndarray, seed: int) -> None:
        self._seed = signed_seed(seed)
        # Eager tensors, which traced functions capture: no graph holds a copy as a constant.
        with tf.init_scope(), tf.device(HOST):
            self._counts = tf.constant(np.maximum(counts, 1), tf.int64)
            self._starts = tf.constant(np.cumsum(counts) - counts, tf.int64)
            self._members = tf.constant(np.argsort(labels, kind="stable"), tf.int64)

    def _examples(self, classes: tf.Tensor, places: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
        """Return positions in the split: of each class what stands at a place of its order in a turn."""
        counts = tf.gather(self._counts, classes)
        key = hashed_key(tf.zeros_like(classes) + self._seed, classes, turns)
        examples = keyed_permutation(places % counts, counts, key)
        return tf.gather(self._members, tf.gather(self._starts, classes) + examples)


class BalancedOrder(_ByClass):
    """Choose the examples of a step: P classes that differ, and K examples of each that differ.

    A round is a permutation of all classes, cut into steps of P = `classes_per_batch`; if P does not divide their
    number, the last classes of the permutation are left out, different ones in every round. A class runs through its
    examples in the same way, K = `examples_per_class` per round; one of fewer than K examples repeats some.
    """

    def __init__(self, labels: np.ndarray, *, classes_per_batch: int, batch_size: int, seed: int) -> None:
        present, counts = np.unique(labels, return_counts=True)
        if classes_per_batch > present.size:
            raise UserError(
                f"Received classes_per_batch={classes_per_batch} for examples of {present.size} classes; "
                f"expected 1..{present.size}."
            )
        self.classes_per_batch = classes_per_batch
        self.examples_per_class = batch_size // classes_per_batch
        self._classes = int(present.size)
        super().__init__(labels, counts, seed)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return positions in the split, class by class: int64 [batch]."""
        steps_per_round = self._classes // self.classes_per_batch
        round_number = step // steps_per_round
        chosen = tf.repeat(self._choose_classes(round_number, step % steps_per_round), self.examples_per_class)
        count = tf.gather(self._counts, chosen)
        # A class of n examples makes n // K rounds with one permutation; the remainder waits for the next one.
        rounds = tf.maximum(count // self.examples_per_class, 1)
        within = tf.tile(tf.range(self.examples_per_class, dtype=tf.int64), [self.classes_per_batch])
        place = (round_number % rounds) * self.examples_per_class + within
        return self._examples(chosen, place, round_number // rounds)

    def _choose_classes(self, round_number: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        """Return which classes a part of a round holds, as numbers in [0, present classes): int64 [P]."""
        place = part * self.classes_per_batch + tf.range(self.classes_per_batch, dtype=tf.int64)
        same = tf.zeros_like(place)
        return keyed_permutation(place, self._classes, hashed_key(same + self._seed, same + round_number))


class SampledOrder(_ByClass):
    """Choose examples so that classes come in given shares.

    An epoch draws as many examples as the split has, a fixed number of each class, in a new order in every epoch.
    """

    def __init__(self, labels: np.ndarray, *, shares: np.ndarray, seed: int) -> None:
        held = np.bincount(labels, minlength=shares.size)
        self.counts = _apportioned(shares, labels.size)  # of each class, drawn in an epoch: int64 [classes]
        if lost := np.flatnonzero((shares > 0) & (self.counts == 0)).tolist():
            raise UserError(
                f"trainer.class_sampling gives class {lost[0]} a share of {shares[lost[0]]:g}, which is not a whole "
                f"example among {labels.size}: it would never be drawn. Expected at least {1 / labels.size:.2g}."
            )
        self._size = int(labels.size)
        super().__init__(labels, held, seed)
        with tf.init_scope(), tf.device(HOST):
            self._drawn = tf.constant(self.counts, tf.int64)
            self._ends = tf.constant(np.cumsum(self.counts), tf.int64)

    def __call__(self, position: tf.Tensor) -> tf.Tensor:
        """Return positions in the split: int64 [n]."""
        place = epoch_permutation(position, self._size, self._seed)
        label = tf.searchsorted(self._ends, place, side="right", out_type=tf.int64)
        drawn, held = tf.gather(self._drawn, label), tf.gather(self._counts, label)
        within = place - (tf.gather(self._ends, label) - drawn)
        number = (position // self._size) * drawn + within  # of this draw among all draws of the class
        return self._examples(label, number, number // held)


def _apportioned(shares: np.ndarray, size: int) -> np.ndarray:
    """Return whole numbers [classes] that add up to `size`, as near to the shares as can be (largest remainders)."""
    exact = shares * size
    counts = np.floor(exact + 1e-9).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")[: size - counts.sum()]
    counts[largest] += 1
    return counts
