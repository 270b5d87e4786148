"""Messages between workers, between the chunks of a run: small integers, and bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from hookline.trainer.replicas.replica import Group

SHORT, LONG = 2**9, 2**17
"""Lengths of the messages in int64: few lengths, since each is traced once."""
WORD = 8


class Messages:
    """Exchange values between the workers of a run. Every worker calls the same methods in the same order.

    Everything is a sum of integers over the workers, which is exact; all but one of them contribute zeros.
    """

    def __init__(self, index: int, group: Group) -> None:
        self.index, self._group = index, group
        self._sums: dict[int, Callable[[tf.Tensor], tf.Tensor]] = {}

    @property
    def count(self) -> int:
        return self._group.size

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return sums over the workers."""
        length = len(values)
        if length not in self._sums:
            self._sums[length] = self._traced(length, instance=len(self._sums) + 1)
        with tf.device("/CPU:0"):
            result: np.ndarray = self._sums[length](tf.constant(values, tf.int64)).numpy()
        return result

    def gather(self, data: bytes) -> list[bytes]:
        """Return what each worker gave, by its index."""
        own = np.zeros(self.count, np.int64)
        own[self.index] = len(data)
        sizes = self.add(own)
        return [self._from(sender, data, int(size)) for sender, size in enumerate(sizes)]

    def from_first(self, data: bytes) -> bytes:
        size = self.add(np.array([len(data) if self.index == 0 else 0] * self.count, np.int64))
        return self._from(0, data, int(size[0]))

    def _from(self, sender: int, data: bytes, size: int) -> bytes:
        words = -(-size // WORD)
        length = SHORT if words <= SHORT else LONG
        own = np.frombuffer(data.ljust(words * WORD, b"\0"), np.int64) if sender == self.index else None
        received = []
        for start in range(0, words, length):
            piece = np.zeros(length, np.int64)
            if own is not None:
                part = own[start : start + length]
                piece[: len(part)] = part
            received.append(self.add(piece).tobytes())
        return b"".join(received)[:size]

    def _traced(self, length: int, instance: int) -> Callable[[tf.Tensor], tf.Tensor]:
        def add(values: tf.Tensor) -> tf.Tensor:
            return self._group.reduce(values, instance, hint="ring")

        traced: Callable[[tf.Tensor], tf.Tensor] = tf.function(
            add, autograph=False, input_signature=[tf.TensorSpec([length], tf.int64)]
        )
        return traced
