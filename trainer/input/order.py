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
    signed_seed = (seed + 2**63) % 2**64 - 2**63
    key = tf.bitcast(tf.fingerprint(tf.stack([same + signed_seed, epoch], axis=1)), tf.int64)
    rotated = (position - epoch * size + key % size) % size
    return (_cipher(rotated, size, key) + _shift(key, 20) % size) % size


def _cipher(index: tf.Tensor, size: int, key: tf.Tensor) -> tf.Tensor:
    """Return a permutation of [0, size) at `index`, int64 [n], for keys int64 [n]."""
    # For a largest index of 2^16, 2^18, ... the op's block is one bit too small, and it repeats an index. There the
    # last index stays in place, which the rotations hide.
    largest = size - 1
    ciphered = largest - 1 if largest > 1 and largest & (largest - 1) == 0 else largest
    words = tf.stack([key, _shift(key, 16), _shift(key, 32)], axis=1)
    shuffled = tf.raw_ops.RandomIndexShuffle(
        index=tf.minimum(index, ciphered), seed=words, max_index=tf.zeros_like(index) + ciphered, rounds=ROUNDS
    )
    return shuffled if ciphered == largest else tf.where(index > ciphered, index, shuffled)


def _shift(key: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(key, tf.constant(bits, tf.int64))
