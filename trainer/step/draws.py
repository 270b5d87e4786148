"""Seeds of stateless draws: what they depend on, and on what they do not."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import tensorflow as tf


def seed_of(source: str, step: tf.Tensor, micro_batch: tf.Tensor | None = None) -> tf.Tensor:
    """Return a seed for `tf.random.stateless_*`, int32 [2]: a pure function of its arguments.

    Args:
        source: text that says what is drawn; another text gives another stream.
        step: integer scalar.
        micro_batch: int32 scalar, which micro batch is at hand; None where all of the batch is.
    """
    constant = zlib.crc32(source.encode()) & 0x7FFFFFFF
    seed = tf.stack([tf.constant(constant, tf.int32), tf.cast(step, tf.int32)])
    return seed if micro_batch is None else tf.random.fold_in(seed, micro_batch)


@dataclass(frozen=True)
class Draws:
    """Give an objective the seeds of its own draws, such as noise.

    Attributes:
        seed: the run's seed.
        step: int64 scalar, steps made before this one.
        objective: its name.
        update: which of the objective's runs in this step.
        training: whether this is a training step; an evaluation draws the same at every step.
        micro_batch: int32 scalar, which micro batch is at hand; None where all of the batch is.
        replica: index of the replica; each has noise of its own.
    """

    seed: int
    step: tf.Tensor
    objective: str
    update: int
    training: bool
    micro_batch: tf.Tensor | None = None
    replica: int = 0

    def stateless_seed(self, salt: str) -> tf.Tensor:
        """Return the seed of one draw, int32 [2]; see `ForwardFunction.stateless_seed`.

        Args:
            salt: what the draw is for.
        """
        if not self.training:
            return seed_of(f"{self.seed}/evaluation/{salt}", tf.constant(0))
        own = f"/replica_{self.replica}" if self.replica else ""
        return seed_of(f"{self.seed}/{self.objective}/{self.update}/{salt}{own}", self.step, self.micro_batch)
