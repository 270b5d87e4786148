"""The order of examples and the seeds of draws, as functions of the step."""

from __future__ import annotations

import functools
import hashlib
import math
import statistics
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from hookline.trainer.input.source import HOST

ROUNDS = 8
"""Rounds of the cipher. With TensorFlow's default of 4, neighbours in an epoch of 55,000 stay correlated; from 8 on,
neighbours, epochs and seeds look like independent permutations."""


def epoch_permutation(position: tf.Tensor, size: int, seed: int) -> tf.Tensor:
    """Return which example stands at each position of an endless run of epochs.

    Epoch e covers the positions e * size .. (e + 1) * size - 1 and holds each index once, in an order keyed by
    (seed, e). Positions of one call may lie in several epochs.

    The permutation is the cycle-walking Simon cipher of `RandomIndexShuffle` (TensorFlow, `index_shuffle`), between
    two rotations. The op alone uses 8 bits of each key word for sets up to 65,536, so epochs would repeat after 256.
    Here (seed, e) is hashed to 64 bits, which key the cipher and both rotations. The op and the hash have kernels for
    the CPU only: call this outside XLA-compiled functions.
    """
    epoch = position // size
    same = tf.zeros_like(position)
    return keyed_permutation(position - epoch * size, size, hashed_key(same + signed_seed(seed), epoch))


def signed_seed(seed: int) -> int:
    """Return the low 64 bits of a seed as a number that fits int64."""
    return (seed + 2**63) % 2**64 - 2**63


def hashed_key(*words: tf.Tensor) -> tf.Tensor:
    """Return keys that differ unrecognisably where any word differs: int64 [n]."""
    return tf.bitcast(tf.fingerprint(tf.stack(words, axis=1)), tf.int64)


def keyed_permutation(index: tf.Tensor, size: tf.Tensor | int, key: tf.Tensor) -> tf.Tensor:
    """Return what stands at each index of the permutation of [0, size) that belongs to a key.

    Sizes and keys may differ in one call. Small sizes take longer: the op walks through 65,536 / size places on
    average, which is 0.3 ms an index for a size of 3, 15 us for 100.
    """
    rotated = (index + key % size) % size
    return (_cipher(rotated, tf.zeros_like(index) + size, key) + _shift(key, 20) % size) % size


def _cipher(index: tf.Tensor, size: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Return a permutation of [0, size) at `index`; all int64 [n]."""
    # For a largest index of 2^16, 2^18, ... the op's block is one bit too small, and it repeats an index. There the
    # last index stays in place, which the rotations hide.
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
    """Return a seed for each example of a batch: int32 [n, 2]. It has a kernel for the CPU only."""
    with tf.device(HOST):
        same = tf.zeros_like(positions)
        # Four words, so that no key is one of the orders' in `sampling.py`, which have three.
        key = hashed_key(same + signed_seed(seed), same + step, positions, same)
        # A bitcast here would be the second in a row: Grappler makes one of them, from uint8 [n, 8], which fails.
        return tf.stack([tf.cast(key, tf.int32), tf.cast(tf.bitwise.right_shift(key, 32), tf.int32)], axis=1)


def salted(seeds: tf.Tensor, salt: str) -> tf.Tensor:
    """Return seeds independent of the given ones, and of those of another salt: int32 [n, 2]."""
    return tf.bitcast(_words(seeds, salt, 1)[:, 0], tf.int32)


def uniform(
    seeds: tf.Tensor, salt: str, shape: Sequence[int] = (), *, low: float = 0.0, high: float = 1.0
) -> tf.Tensor:
    """Return numbers from [low, high), of 2^24 values: float32 [n, *shape]."""
    bits = tf.bitwise.right_shift(_words(seeds, salt, math.prod(shape)), _word(40))
    fractions = tf.cast(tf.cast(bits, tf.int32), tf.float32) * 2.0**-24
    return tf.reshape(fractions * (high - low) + low, [-1, *shape])


def chance(seeds: tf.Tensor, salt: str, probability: float) -> tf.Tensor:
    """Return True with a probability: bool [n]; never for 0, always for 1."""
    return uniform(seeds, salt) < probability


def whole_numbers(seeds: tf.Tensor, salt: str, low: int, high: int) -> tf.Tensor:
    """Return whole numbers from low to high, both included: int32 [n]."""
    bits = tf.bitwise.right_shift(_words(seeds, salt, 1)[:, 0], _word(32))
    return tf.cast(tf.bitwise.right_shift(bits * _word(high - low + 1), _word(32)), tf.int32) + low


def normal(seeds: tf.Tensor, salt: str, shape: Sequence[int]) -> tf.Tensor:
    """Return numbers of the standard normal distribution: float32 [n, *shape].

    They are looked up among 65,536 quantiles, so none is beyond 4.33, and devices cannot disagree about a logarithm.
    """
    count = math.prod(shape)
    with tf.init_scope():  # traced functions capture it; no graph holds a copy as a constant
        quantiles = tf.constant(_normal_quantiles())
    rows = tf.cast(tf.bitcast(_words(seeds, salt, -(-count // 4)), tf.uint16), tf.int32)
    drawn = tf.gather(quantiles, tf.reshape(rows, [-1, 4 * -(-count // 4)])[:, :count])
    return tf.reshape(drawn, [-1, *shape])


def _words(seeds: tf.Tensor, salt: str, count: int) -> tf.Tensor:
    """Return outputs 1 .. count of SplitMix64 that starts from each seed with its salt: uint64 [n, count]."""
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
    """Return the middles of 65,536 equally likely parts of the normal distribution, in order: float32."""
    standard = statistics.NormalDist()
    upper = np.array([standard.inv_cdf(0.5 + (each + 0.5) / 65_536) for each in range(32_768)], np.float32)
    return np.concatenate([-upper[::-1], upper])
