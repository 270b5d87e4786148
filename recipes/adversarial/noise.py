"""What generators start from: noise that repeats exactly for one run, and never within it."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from trainer.objective import ForwardFunction

KINDS = ("normal", "uniform")


@dataclass(frozen=True)
class Noise:
    """Say how a generator's inputs are drawn.

    Attributes:
        size: numbers of one input.
        kind: "normal" (mean 0, variance 1) or "uniform" (in [-1, 1)).
    """

    size: int
    kind: str = "normal"

    def draw(self, forward: ForwardFunction, pairs: int, count: int, *, use: str) -> tf.Tensor:
        """Return independent noise for each of several generators.

        Generator n draws with a seed of its own, so it gets the same noise in whatever form it is run.

        Args:
            forward: of the objective; it knows the run's seed, the step and the update.
            pairs: number of generators.
            count: inputs for each.
            use: what the noise is for; another use gives other noise.

        Returns:
            float32 [pairs, count, size].
        """
        return tf.stack([self._of_one(forward.stateless_seed(f"{use}_{pair}"), count) for pair in range(pairs)])

    def _of_one(self, seed: tf.Tensor, count: int) -> tf.Tensor:
        if self.kind == "uniform":
            return tf.random.stateless_uniform([count, self.size], seed, -1.0, 1.0)
        return tf.random.stateless_normal([count, self.size], seed)
