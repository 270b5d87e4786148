"""The order of training examples: a permutation for every epoch, computed and never stored."""

from __future__ import annotations

import tensorflow as tf

ROUNDS = 8
"""Rounds of the cipher. With TensorFlow's default of 4, neighbours in an epoch of 55,000 stay correlated; from 8 on,
neighbours, epochs and seeds look like independent permutations."""


def epoch_permutation(position: tf.Tensor, size: int, seed: int) -> tf.Tensor:
    """Return which example stands at each position of an endless run of epochs.

    Epoch e covers the positions e * size .. (e + 1) * size - 1 and holds each index once, in an order keyed by
    (seed, e). A pure function that needs no memory, however large the set. Positions of one call may lie in several
    epochs.

    The permutation is the cycle-walking Simon cipher of `RandomIndexShuffle` (TensorFlow, `index_shuffle`), between
    two rotations. The op alone will not do: it uses 8 bits of each key word for sets up to 65,536, so that epochs
    would repeat after 256. Here (seed, e) is hashed to 64 bits, which key the cipher and both rotations. The op and
    the hash have kernels for the CPU only: call this outside XLA-compiled functions.

    Args:
        position: int64 [n], positions counted from 0 at the start of training.
        size: number of examples, at least 1.
        seed: any integer; its low 64 bits count.

    Returns:
        int64 [n], indices in [0, size).
    """
    epoch = position // size
    same = tf.zeros_like(position)
    return keyed_permutation(position - epoch * size, size, hashed_key(same + signed_seed(seed), epoch))


def signed_seed(seed: int) -> int:
    """Return the low 64 bits of a seed as a number that fits int64.

    Args:
        seed: any integer.
    """
    return (seed + 2**63) % 2**64 - 2**63


def hashed_key(*words: tf.Tensor) -> tf.Tensor:
    """Return keys that differ unrecognisably where any word differs: int64 [n].

    Args:
        words: int64 [n] each; another number of words gives other keys.
    """
    return tf.bitcast(tf.fingerprint(tf.stack(words, axis=1)), tf.int64)


def keyed_permutation(index: tf.Tensor, size: tf.Tensor | int, key: tf.Tensor) -> tf.Tensor:
    """Return what stands at each index of the permutation of [0, size) that belongs to a key.

    See `epoch_permutation`. Permutations of several sizes and keys may be asked in one call. Small sizes take longer:
    the op walks through 65,536 / size places on average, which is 0.3 ms an index for a size of 3, 15 us for 100.

    Args:
        index: int64 [n], each in [0, size).
        size: at least 1; one for all, or int64 [n].
        key: int64 [n], of `hashed_key`.

    Returns:
        int64 [n], each in [0, size).
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
