"""The order of examples, optionally by class, and the seeds of random draws, as functions of the step."""

from __future__ import annotations

import functools
import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.trainer.config.schema import BALANCED
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.data import HOST

ROUNDS = 8
"""Rounds of the cipher. With TensorFlow's default of 4, neighbors in an epoch of 55,000 stay correlated; from 8 on,
neighbors, epochs and seeds behave like independent permutations."""


def epoch_permutation(position: tf.Tensor, size: int, seed: int) -> tf.Tensor:
    """Return the index of the example at each position of an endless sequence of epochs.

    Epoch e covers the positions e * size .. (e + 1) * size - 1 and contains each index once, in an order keyed by
    (seed, e). Positions of one call may lie in several epochs.

    The permutation is the cycle-walking Simon cipher of `RandomIndexShuffle` (TensorFlow, `index_shuffle`), between
    two rotations. The op alone uses 8 bits of each key word for sets up to 65,536, so epochs would repeat after 256.
    Here (seed, e) is hashed to 64 bits, which key the cipher and both rotations. The op and the hash have CPU kernels
    only: call this outside XLA-compiled functions.
    """
    epoch = position // size
    same = tf.zeros_like(position)
    return keyed_permutation(position - epoch * size, size, hashed_key(same + signed_seed(seed), epoch))


def signed_seed(seed: int) -> int:
    """Return the low 64 bits of a seed as a number that fits int64."""
    return (seed + 2**63) % 2**64 - 2**63


def hashed_key(*words: tf.Tensor) -> tf.Tensor:
    """Return keys hashed from words, unrelated if any word differs: int64 [n]."""
    return tf.bitcast(tf.fingerprint(tf.stack(words, axis=1)), tf.int64)


def keyed_permutation(index: tf.Tensor, size: tf.Tensor | int, key: tf.Tensor) -> tf.Tensor:
    """Return the element at each index of the permutation of [0, size) that a key selects.

    Sizes and keys may differ within one call. Small sizes take longer: the op walks through 65,536 / size places on
    average, which takes 0.3 ms per index for a size of 3, 15 us for 100.
    """
    rotated = (index + key % size) % size
    return (_cipher(rotated, tf.zeros_like(index) + size, key) + _shift(key, 20) % size) % size


def _cipher(index: tf.Tensor, size: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Return a permutation of [0, size) at `index`; all int64 [n]."""
    # For a largest index of 2^16, 2^18, ... the op's block is one bit too small, and it repeats an index. In that case
    # the last index stays in place, which the rotations hide.
    largest = size - 1
    power_of_two = tf.logical_and(largest > 1, tf.equal(tf.bitwise.bitwise_and(largest, largest - 1), 0))
    ciphered = tf.where(power_of_two, largest - 1, largest)
    words = tf.stack([key, _shift(key, 16), _shift(key, 32)], axis=1)
    shuffled = tf.raw_ops.RandomIndexShuffle(
        index=tf.minimum(index, ciphered), seed=words, max_index=ciphered, rounds=ROUNDS
    )
    return tf.where(index > ciphered, index, shuffled)


def _shift(key: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(key, tf.constant(bits, tf.int64))


GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of SplitMix64 (Steele, Lea, Flood 2014)."""


def example_seeds(seed: int, step: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Return a seed for each example of a batch: int32 [n, 2]. Runs on the CPU only."""
    with tf.device(HOST):
        same = tf.zeros_like(positions)
        # Four words, so that no key equals one of the orders' keys below, which hash fewer.
        key = hashed_key(same + signed_seed(seed), same + step, positions, same)
        # A bitcast here would be the second in a row: Grappler merges both into one from uint8 [n, 8], which fails.
        return tf.stack([tf.cast(key, tf.int32), tf.cast(tf.bitwise.right_shift(key, 32), tf.int32)], axis=1)


def salted(seeds: tf.Tensor, salt: str) -> tf.Tensor:
    """Return seeds independent of the given ones, and of those for any other salt: int32 [n, 2]."""
    return tf.bitcast(_words(seeds, salt, 1)[:, 0], tf.int32)


def uniform(
    seeds: tf.Tensor, salt: str, shape: Sequence[int] = (), *, low: float = 0.0, high: float = 1.0
) -> tf.Tensor:
    """Return uniform numbers in [low, high), from 2^24 values: float32 [n, *shape]."""
    bits = tf.bitwise.right_shift(_words(seeds, salt, math.prod(shape)), _word(40))
    fractions = tf.cast(tf.cast(bits, tf.int32), tf.float32) * 2.0**-24
    return tf.reshape(fractions * (high - low) + low, [-1, *shape])


def chance(seeds: tf.Tensor, salt: str, probability: float) -> tf.Tensor:
    """Return True with the given probability: bool [n]; never for 0, always for 1."""
    return uniform(seeds, salt) < probability


def whole_numbers(seeds: tf.Tensor, salt: str, low: int, high: int) -> tf.Tensor:
    """Return uniform integers from low to high, both included: int32 [n]."""
    bits = tf.bitwise.right_shift(_words(seeds, salt, 1)[:, 0], _word(32))
    return tf.cast(tf.bitwise.right_shift(bits * _word(high - low + 1), _word(32)), tf.int32) + low


def normal(seeds: tf.Tensor, salt: str, shape: Sequence[int]) -> tf.Tensor:
    """Return standard normal numbers: float32 [n, *shape].

    They are looked up among 65,536 quantiles, so none exceeds 4.33, and they do not depend on a device's logarithm.
    """
    count = math.prod(shape)
    with tf.init_scope():  # traced functions capture it; no graph holds a copy as a constant
        quantiles = tf.constant(_normal_quantiles())
    rows = tf.cast(tf.bitcast(_words(seeds, salt, -(-count // 4)), tf.uint16), tf.int32)
    drawn = tf.gather(quantiles, tf.reshape(rows, [-1, 4 * -(-count // 4)])[:, :count])
    return tf.reshape(drawn, [-1, *shape])


def _words(seeds: tf.Tensor, salt: str, count: int) -> tf.Tensor:
    """Return outputs 1 .. count of SplitMix64 started from each salted seed: uint64 [n, count]."""
    salt_word = int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest(), "little")
    start = tf.bitwise.bitwise_xor(tf.bitcast(seeds, tf.uint64), _word(salt_word))
    words = start[:, None] + tf.cast(tf.range(1, count + 1, dtype=tf.int64), tf.uint64) * _word(GOLDEN)
    for shift, factor in ((30, FIRST), (27, SECOND)):
        words = tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, _word(shift))) * _word(factor)
    return tf.bitwise.bitwise_xor(words, tf.bitwise.right_shift(words, _word(31)))


def _word(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


@functools.cache
def _normal_quantiles() -> np.ndarray:
    """Return the medians of 65,536 equally likely intervals of the normal distribution, in order: float32."""
    standard = statistics.NormalDist()
    upper = np.array([standard.inv_cdf(0.5 + (each + 0.5) / 65_536) for each in range(32_768)], np.float32)
    return np.concatenate([-upper[::-1], upper])


Setting = str | Mapping[Any, float]


def class_weights(setting: Setting, labels: np.ndarray, classes: int, names: Sequence[str] = ()) -> np.ndarray:
    """Return the loss weight of each class.

    "balanced" gives a class with n of all N examples the weight N / (C n), where C classes have examples.
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
    """Return each class's share of the examples drawn for training."""
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
            raise UserError(f"{key} names class {each}, which is not in the data. Expected 0..{classes - 1}.")
        if labels[str(each)] in found:
            raise UserError(f"{key} names class {labels[str(each)]} twice. Expected each class once.")
        found[labels[str(each)]] = float(value)
    return found


class _ByClass:
    """Choose examples of given classes: each class cycles through its own, in a new order every time."""

    def __init__(self, labels: np.ndarray, counts: np.ndarray, seed: int) -> None:
        self._seed = signed_seed(seed)
        # Eager tensors, which traced functions capture: no graph holds a copy as a constant.
        with tf.init_scope(), tf.device(HOST):
            self._counts = tf.constant(np.maximum(counts, 1), tf.int64)
            self._starts = tf.constant(np.cumsum(counts) - counts, tf.int64)
            self._members = tf.constant(np.argsort(labels, kind="stable"), tf.int64)

    def _examples(self, classes: tf.Tensor, places: tf.Tensor, turns: tf.Tensor) -> tf.Tensor:
        """Return positions in the split: for each class, the example at a place of its order in a turn."""
        counts = tf.gather(self._counts, classes)
        key = hashed_key(tf.zeros_like(classes) + self._seed, classes, turns)
        examples = keyed_permutation(places % counts, counts, key)
        return tf.gather(self._members, tf.gather(self._starts, classes) + examples)


class BalancedOrder(_ByClass):
    """Choose the examples of a step: P different classes, and K different examples of each.

    A round is a permutation of all classes, cut into steps of P = `classes_per_batch`; if P does not divide the number
    of classes, the last ones of the permutation are left out, different ones in every round. A class runs through its
    examples in the same way, K = `examples_per_class` per round; a class with fewer than K examples repeats some.
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
        # A class of n examples uses one permutation for n // K rounds; the remainder waits for the next permutation.
        rounds = tf.maximum(count // self.examples_per_class, 1)
        within = tf.tile(tf.range(self.examples_per_class, dtype=tf.int64), [self.classes_per_batch])
        place = (round_number % rounds) * self.examples_per_class + within
        return self._examples(chosen, place, round_number // rounds)

    def _choose_classes(self, round_number: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        """Return the classes of a part of a round, as numbers in [0, present classes): int64 [P]."""
        place = part * self.classes_per_batch + tf.range(self.classes_per_batch, dtype=tf.int64)
        same = tf.zeros_like(place)
        return keyed_permutation(place, self._classes, hashed_key(same + self._seed, same + round_number))


class SampledOrder(_ByClass):
    """Choose examples so that classes occur in given shares.

    An epoch draws as many examples as the split has, with a fixed number per class, in a new order in every epoch.
    """

    def __init__(self, labels: np.ndarray, *, shares: np.ndarray, seed: int) -> None:
        held = np.bincount(labels, minlength=shares.size)
        self.counts = _apportioned(shares, labels.size)  # examples of each class per epoch: int64 [classes]
        if lost := np.flatnonzero((shares > 0) & (self.counts == 0)).tolist():
            raise UserError(
                f"trainer.class_sampling gives class {lost[0]} a share of {shares[lost[0]]:g}, which is less than "
                f"one of {labels.size} examples, so it would never be drawn. Expected at least {1 / labels.size:.2g}."
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
    """Return integers [classes] that add up to `size`, as close to the shares as possible (largest remainders)."""
    exact = shares * size
    counts = np.floor(exact + 1e-9).astype(np.int64)
    largest = np.argsort(counts - exact, kind="stable")[: size - counts.sum()]
    counts[largest] += 1
    return counts
