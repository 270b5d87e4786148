"""A step of one's own: the two halves of a step, with the gradients between them in the open."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hookline.fits import State
from hookline.trainer.errors import UserError
from hookline.trainer.objective import SAMPLE_WEIGHTS
from hookline.trainer.step.metrics import StepResult
from hookline.trainer.step.trainer import HalfStep


class OwnStep:
    """Hold a step between its gradients and what they change.

    Attributes:
        gradients: that the optimizer gets, by variable name; None where the loss does not depend on a variable. Other
            tensors may be put in their places.
        losses: scalars by name, "total" among them.
        metrics: scalars by name.
    """

    def __init__(self, half: HalfStep) -> None:
        """Take the first half of a step."""
        self.half = half
        self.gradients = next(iter(half.contexts.values())).gradients
        self.losses, self.metrics = half.computed.losses, half.computed.metrics


def first_half(state: State, x: Any, y: Any, sample_weight: Any) -> OwnStep:
    """Trace the first half of a step; see `Trainer.compute_gradients`."""
    if tf.executing_eagerly():
        raise UserError("compute_gradients was called outside a graph. Expected a function under @tf.function.")
    trainer = state.trainer
    if len(trainer.objectives) != 1:
        raise UserError("compute_gradients is for one objective. Expected a hook, for a step of several.")
    batch = {"inputs": x, "targets": y, "index": tf.zeros([tf.shape(tf.nest.flatten(x)[0])[0]], tf.int64)}
    if sample_weight is not None:
        batch[SAMPLE_WEIGHTS] = sample_weight
    step = state.counter.read_value() + state.begun
    return OwnStep(trainer.first_half(trainer.objectives[0], step, batch))


def second_half(state: State, own: OwnStep) -> dict[str, tf.Tensor]:
    """Trace the rest of a step; see `Trainer.apply_gradients`."""
    trainer, half = state.trainer, own.half
    for context in half.contexts.values():
        context.gradients = {name: own.gradients.get(name) for name in context.latent}
    result: StepResult = trainer.second_half(half)
    written = tf.logical_not(result.held_back) if result.held_back is not None else tf.constant(True)
    with tf.control_dependencies([total for total, _ in result.sums.values()]):
        state.counter.assign_add(tf.cast(written, tf.int64))
    return {name: tf.math.divide_no_nan(total, count) for name, (total, count) in result.sums.items()}
