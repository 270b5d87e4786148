"""Losses that weigh by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from trainer.errors import UserError
from trainer.objective import TARGET_SHARES, Batch, Objective


def weigh_losses(
    objective: Objective, losses: Mapping[str, tf.Tensor], batch: Batch, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return the losses of an objective, each example's multiplied by the weight of its class.

    What is minimised is the sum of the weighted losses divided by the number of examples, not by the sum of their
    weights: a batch of heavy classes makes a larger step than one of light classes. That is Keras's `class_weight`. A
    mixed example has the mixture of the weights of its classes, in the same shares.

    Args:
        objective: names its losses that are of a class in `class_losses`; others stay as they are.
        losses: by name, those of a class [batch].
        batch: with "targets" [batch], or "target_shares" [batch, classes].
        weights: float32 [classes].
    """
    if TARGET_SHARES in batch:
        own = tf.linalg.matvec(batch[TARGET_SHARES], weights)
    else:
        own = tf.gather(weights, batch["targets"])
    return {
        name: value * tf.cast(own, value.dtype) if name in objective.class_losses else value
        for name, value in losses.items()
    }


def check_class_losses(objectives: Sequence[Objective]) -> None:
    """Refuse weights of classes where no objective has a loss for them.

    Args:
        objectives: of the run.

    Raises:
        UserError: none has any.
    """
    if not any(objective.class_losses for objective in objectives):
        names = ", ".join(f"'{objective.name}'" for objective in objectives)
        raise UserError(
            f"trainer.class_weights received, but no loss of {names} is one for each example of a class. Expected "
            "trainer.class_weights=null here; trainer.class_sampling changes how often classes come."
        )
