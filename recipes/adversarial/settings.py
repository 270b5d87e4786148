"""Adversarial losses, gradient penalties, noise, and the settings of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.objective import ForwardFunction

Term: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"


@dataclass(frozen=True)
class AdversarialLoss:
    """Hold the terms of a loss; each maps scores of any shape to losses of that shape."""

    real: Term  # of the discriminator, for its scores of real examples
    fake: Term  # of the discriminator, for its scores of generated examples
    generator: Term  # of the generator, for the discriminator's scores of its samples
    needs_penalty: bool = False  # whether the discriminator must be held Lipschitz by a gradient penalty


LOSSES: dict[str, AdversarialLoss] = {
    # Goodfellow et al., Generative Adversarial Nets, 2014: -log sigmoid(s) and -log(1 - sigmoid(s)); the generator
    # maximises log sigmoid(s), whose gradient does not vanish where the discriminator wins.
    "non_saturating": AdversarialLoss(
        real=lambda scores: tf.nn.softplus(-scores),
        fake=lambda scores: tf.nn.softplus(scores),
        generator=lambda scores: tf.nn.softplus(-scores),
    ),
    # Lim and Ye, Geometric GAN, 2017, arXiv 1705.02894.
    "hinge": AdversarialLoss(
        real=lambda scores: tf.nn.relu(1.0 - scores),
        fake=lambda scores: tf.nn.relu(1.0 + scores),
        generator=lambda scores: tf.negative(scores),
    ),
    # Gulrajani et al., Improved Training of Wasserstein GANs, 2017, arXiv 1704.00028.
    "wasserstein": AdversarialLoss(
        real=lambda scores: tf.negative(scores),
        fake=lambda scores: tf.identity(scores),
        generator=lambda scores: tf.negative(scores),
        needs_penalty=True,
    ),
}


PENALTIES = ("r1", "two_sided")

Scores: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"
"""Maps inputs [networks, batch, ...] to scores [networks, batch]; each score depends on its own example alone."""
Differentiate: TypeAlias = "Callable[[tf.Tensor, Sequence[tf.Tensor]], list[tf.Tensor | None]]"
"""Returns the gradients of a scalar: `ForwardFunction.gradients`, which keeps those of float16 from vanishing."""


def r1_penalty(scores: Scores, real: tf.Tensor, gradients: Differentiate) -> tf.Tensor:
    """Return half the squared slope at real examples (Mescheder et al. 2018, arXiv 1801.04406, equation 9)."""
    return 0.5 * _squared_slope(scores, real, gradients)


def two_sided_penalty(
    scores: Scores, real: tf.Tensor, fake: tf.Tensor, seed: tf.Tensor, gradients: Differentiate
) -> tf.Tensor:
    """Return (slope - 1)^2 at random points between real and generated examples.

    Gulrajani et al., Improved Training of Wasserstein GANs, 2017, arXiv 1704.00028, algorithm 1.
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
    """Say how a discriminator's slope is penalized."""

    kind: str  # one of `PENALTIES`
    weight: float  # of the penalty in the discriminator's loss, above 0

    def __call__(
        self, scores: Scores, real: tf.Tensor, fake: tf.Tensor, seed: tf.Tensor, gradients: Differentiate
    ) -> tf.Tensor:
        """Return the weighted penalty of each example: float32 [networks, batch]."""
        if self.kind == "r1":
            return self.weight * r1_penalty(scores, real, gradients)
        return self.weight * two_sided_penalty(scores, real, fake[:, : real.shape[1]], seed, gradients)


NOISES = ("normal", "uniform")


@dataclass(frozen=True)
class Noise:
    """Say how a generator's inputs are drawn."""

    size: int  # numbers of one input
    kind: str = "normal"  # mean 0 and variance 1; or "uniform", in [-1, 1)

    def draw(self, forward: ForwardFunction, pairs: int, count: int, *, use: str) -> tf.Tensor:
        """Return independent noise for each of several generators.

        Generator n draws with a seed of its own, so it gets the same noise in whatever form it is run.
        """
        seeds = [forward.stateless_seed(f"{use}_{pair}") for pair in range(pairs)]
        if self.kind == "uniform":
            return tf.stack([tf.random.stateless_uniform([count, self.size], seed, -1.0, 1.0) for seed in seeds])
        return tf.stack([tf.random.stateless_normal([count, self.size], seed) for seed in seeds])


AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """Hold the settings of an adversarial game."""

    loss: AdversarialLoss
    penalty: Penalty | None  # of the discriminators' slope
    noise: Noise
    updates: int  # of the discriminators in a step
    discriminator_learning_rate: float | None  # None for the optimizer's own
    samples: int  # that an evaluation judges, of each generator


def check_settings(
    *,
    loss: str,
    gradient_penalty: float,
    penalty: str,
    discriminator_updates: int,
    discriminator_learning_rate: float | None,
    latent_size: int,
    noise: str,
    samples: int,
) -> Settings:
    """Return the settings of a recipe's arguments of the same names."""
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    if noise not in NOISES:
        raise unknown_name("noise", noise, NOISES)
    check_count("discriminator_updates", discriminator_updates, 1)
    check_count("latent_size", latent_size, 1)
    check_count("samples", samples, 2)
    rate = discriminator_learning_rate
    if rate is not None and not 0.0 < rate < math.inf:
        raise UserError(
            f"discriminator_learning_rate={rate} received. Expected a number above 0, such as 0.001; null is the "
            "optimizer's own rate."
        )
    slope = _penalty(loss, gradient_penalty, penalty)
    return Settings(LOSSES[loss], slope, Noise(latent_size, noise), discriminator_updates, rate, samples)


def settings_of(arguments: Mapping[str, Any]) -> Settings:
    """Return the settings among a recipe's arguments."""
    return check_settings(**{name: arguments[name] for name in inspect.signature(check_settings).parameters})


def check_count(name: str, value: Any, least: int) -> None:
    """Check a whole number."""
    if not is_whole_number(value) or value < least:
        raise UserError(f"{name}={value} received. Expected a whole number of at least {least}.")


def _penalty(loss: str, weight: float, kind: str) -> Penalty | None:
    if kind not in (AUTO, *PENALTIES):
        raise unknown_name("penalty", kind, (AUTO, *PENALTIES))
    if not 0.0 <= weight < math.inf:
        raise UserError(f"gradient_penalty={weight} received. Expected a number of 0 or more; 0 is not a penalty.")
    if not weight:
        if LOSSES[loss].needs_penalty:
            raise UserError(
                f"gradient_penalty=0 received with loss={loss}, whose discriminator is unbounded without one. Expected "
                "a number above 0, such as 10."
            )
        return None
    if kind == AUTO:
        kind = "two_sided" if LOSSES[loss].needs_penalty else "r1"
    return Penalty(kind, float(weight))
