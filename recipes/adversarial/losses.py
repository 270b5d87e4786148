"""Adversarial losses: what a discriminator and a generator minimise, as functions of the discriminator's scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import tensorflow as tf

Term: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"


@dataclass(frozen=True)
class AdversarialLoss:
    """Hold the terms of a loss; each maps scores of any shape to losses of that shape.

    Attributes:
        real: of the discriminator, for its scores of real examples.
        fake: of the discriminator, for its scores of generated examples.
        generator: of the generator, for the discriminator's scores of what it made.
        needs_penalty: whether the discriminator must be held Lipschitz by a gradient penalty.
    """

    real: Term
    fake: Term
    generator: Term
    needs_penalty: bool = False


def _negative(scores: tf.Tensor) -> tf.Tensor:
    return tf.negative(scores)


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
        generator=_negative,
    ),
    # Gulrajani et al., Improved Training of Wasserstein GANs, 2017, arXiv 1704.00028.
    "wasserstein": AdversarialLoss(
        real=_negative, fake=lambda scores: tf.identity(scores), generator=_negative, needs_penalty=True
    ),
}
"""Losses by name."""
