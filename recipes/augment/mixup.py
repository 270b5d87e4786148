"""Mixup: weighted means of two examples and of their targets."""

from __future__ import annotations

import tensorflow as tf

from recipes.augment.beta import beta
from recipes.augment.mixing import random_partners
from recipes.augment.options import check_number
from trainer.errors import UserError
from trainer.input.augment import Augment
from trainer.input.draws import chance
from trainer.objective import TARGET_SHARES, Batch


class Mixup(Augment):
    """Mix each example with another of its batch: w x + (1 - w) x', and its target likewise, w ~ Beta(alpha, alpha).

    The weights are drawn for each example. Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization", equation 2
    and section 3.
    """

    priority = 80
    mixes = True

    def __init__(self, *, alpha: float = 0.2, probability: float = 1.0) -> None:
        """Check the options.

        Args:
            alpha: above 0, at most 100; the larger, the nearer the weights are to 1/2. The paper: 0.1 to 0.4 for
                ImageNet, 1 for CIFAR-10.
            probability: of an example to be mixed, in (0, 1].

        Raises:
            UserError: an option out of range.
        """
        self.alpha = check_number("alpha", alpha, maximum=100.0, above_zero=True)
        self.probability = check_number("probability", probability, maximum=1.0, above_zero=True)

    def check(self, batch: Batch) -> None:
        if not batch["inputs"].dtype.is_floating:
            raise UserError(f"the inputs are {batch['inputs'].dtype.name}. Expected floating point.")

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        mixed = chance(seeds, "mixed", self.probability)
        own = tf.where(mixed, beta(seeds, "weight", self.alpha), 1.0)
        partners = random_partners(seeds)
        return {**batch, **{name: _weighted(batch[name], partners, own) for name in ("inputs", TARGET_SHARES)}}


def _weighted(tensor: tf.Tensor, partners: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Return own x + (1 - own) x' for tensors [batch, ...]."""
    own = tf.cast(tf.reshape(own, [-1, *[1] * (tensor.shape.rank - 1)]), tensor.dtype)
    return own * tensor + (1.0 - own) * tf.gather(tensor, partners)
