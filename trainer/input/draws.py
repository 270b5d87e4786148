"""Random numbers for single examples: each is a hash of a seed, a salt and a place, on any device the same."""

from __future__ import annotations

import functools
import hashlib
import math
import statistics
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from trainer.input.order import hashed_key, signed_seed
from trainer.input.source import HOST

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of SplitMix64 (Steele, Lea, Flood 2014)."""
_HALF = 32  # bits of a key


def example_seeds(seed: int, step: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Return a seed for each example of a batch: int32 [n, 2]. It has a kernel for the CPU only.

    Args:
        seed: the run's seed.
        step: int64 scalar, batches drawn before this one.
        positions: int64 [n], places in the batch of the step.
    """
    with tf.device(HOST):
        same = tf.zeros_like(positions)
        # Four words, so that no key is one of the orders' in `balanced.py`, which have three.
        key = hashed_key(same + signed_seed(seed), same + step, positions, same)
        # A bitcast here would be the second in a row: Grappler makes one of them, from uint8 [n, 8], which fails.
        return tf.stack([tf.cast(key, tf.int32), tf.cast(tf.bitwise.right_shift(key, _HALF), tf.int32)], axis=1)


def salted(seeds: tf.Tensor, salt: str) -> tf.Tensor:
    """Return seeds that have nothing to do with the given ones, or with those of another salt: int32 [n, 2].

    Args:
        seeds: int32 [n, 2].
        salt: what the seeds are for.
    """
    return tf.bitcast(_words(seeds, salt, 1)[:, 0], tf.int32)


def uniform(
    seeds: tf.Tensor, salt: str, shape: Sequence[int] = (), *, low: float = 0.0, high: float = 1.0
) -> tf.Tensor:
    """Return numbers from [low, high), of 2^24 values: float32 [n, *shape].

    Args:
        seeds: int32 [n, 2].
        salt: what the draw is for. Two draws from one seed need two salts.
        shape: of the numbers of one example.
        low: the smallest.
        high: what they stay below, but for rounding.
    """
    bits = tf.bitwise.right_shift(_words(seeds, salt, math.prod(shape)), _word(40))
    fractions = tf.cast(tf.cast(bits, tf.int32), tf.float32) * 2.0**-24
    return tf.reshape(fractions * (high - low) + low, [-1, *shape])


def chance(seeds: tf.Tensor, salt: str, probability: float) -> tf.Tensor:
    """Return True with a probability: bool [n]; never for 0, always for 1.

    Args:
        seeds: int32 [n, 2].
        salt: what the draw is for.
        probability: in [0, 1].
    """
    return uniform(seeds, salt) < probability


def whole_numbers(seeds: tf.Tensor, salt: str, low: int, high: int) -> tf.Tensor:
    """Return whole numbers from low to high, both included: int32 [n].

    Args:
        seeds: int32 [n, 2].
        salt: what the draw is for.
        low: the smallest.
        high: the largest; at most 2^31 numbers lie between.
    """
    bits = tf.bitwise.right_shift(_words(seeds, salt, 1)[:, 0], _word(32))
    return tf.cast(tf.bitwise.right_shift(bits * _word(high - low + 1), _word(32)), tf.int32) + low


def normal(seeds: tf.Tensor, salt: str, shape: Sequence[int]) -> tf.Tensor:
    """Return numbers of the standard normal distribution: float32 [n, *shape].

    They are looked up among 65,536 quantiles, so none is beyond 4.33. That takes half the time of
    `tf.random.stateless_normal`, and devices cannot disagree about a logarithm.

    Args:
        seeds: int32 [n, 2].
        salt: what the draw is for.
        shape: of the numbers of one example.
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
