"""Gradient penalties: hold a discriminator's slope with respect to its inputs, by second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

KINDS = ("r1", "two_sided")

Scores: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"
"""Maps inputs [networks, batch, ...] to scores [networks, batch]; each score depends on its own example alone."""
Differentiate: TypeAlias = "Callable[[tf.Tensor, Sequence[tf.Tensor]], list[tf.Tensor | None]]"
"""Returns the gradients of a scalar: `ForwardFunction.gradients`, which keeps those of float16 from vanishing."""


def r1_penalty(scores: Scores, real: tf.Tensor, gradients: Differentiate) -> tf.Tensor:
    """Return half the squared slope at real examples (Mescheder et al. 2018, arXiv 1801.04406, equation 9).

    Args:
        scores: the discriminator.
        real: float [networks, batch, ...].
        gradients: of scores.

    Returns:
        float32 [networks, batch].
    """
    return 0.5 * _squared_slope(scores, real, gradients)


def two_sided_penalty(
    scores: Scores, real: tf.Tensor, fake: tf.Tensor, seed: tf.Tensor, gradients: Differentiate
) -> tf.Tensor:
    """Return (slope - 1)^2 at random points between real and generated examples.

    Gulrajani et al., Improved Training of Wasserstein GANs, 2017, arXiv 1704.00028, algorithm 1.

    Args:
        scores: the discriminator.
        real: float [networks, batch, ...].
        fake: the same shape; in half precision where the generator computes in that.
        seed: int32 [2], of the places between.
        gradients: of scores.

    Returns:
        float32 [networks, batch].
    """
    real, fake = tf.cast(real, tf.float32), tf.cast(fake, tf.float32)
    shape = tf.concat([tf.shape(real)[:2], tf.ones([real.shape.rank - 2], tf.int32)], axis=0)
    share = tf.random.stateless_uniform(shape, seed, dtype=real.dtype)
    # The derivative of a root is infinite at 0: an example without slope would give NaN.
    slope = tf.sqrt(_squared_slope(scores, fake + share * (real - fake), gradients) + 1e-12)
    return tf.square(slope - 1.0)


def _squared_slope(scores: Scores, points: tf.Tensor, gradients: Differentiate) -> tf.Tensor:
    points = tf.stop_gradient(points)
    (gradient,) = gradients(tf.reduce_sum(scores(points)), [points])
    return tf.reduce_sum(tf.square(gradient), axis=list(range(2, points.shape.rank)))


@dataclass(frozen=True)
class Penalty:
    """Say how a discriminator's slope is held.

    Attributes:
        kind: "r1" or "two_sided".
        weight: of the penalty in the discriminator's loss, above 0.
    """

    kind: str
    weight: float

    def __call__(
        self, scores: Scores, real: tf.Tensor, fake: tf.Tensor, seed: tf.Tensor, gradients: Differentiate
    ) -> tf.Tensor:
        """Return the weighted penalty of each example: float32 [networks, batch].

        Args:
            scores: the discriminator.
            real: float [networks, batch, ...].
            fake: float [networks, batch or more, ...].
            seed: int32 [2], of what is drawn.
            gradients: of scores.
        """
        if self.kind == "r1":
            return self.weight * r1_penalty(scores, real, gradients)
        return self.weight * two_sided_penalty(scores, real, fake[:, : real.shape[1]], seed, gradients)
