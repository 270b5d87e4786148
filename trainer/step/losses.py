"""Weights of losses: by class, and the scale of float16."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import Gradients
from hookline.trainer.network import Network
from hookline.trainer.objective import SOFT_TARGETS, Batch, Objective


def weigh_losses(
    objective: Objective, losses: Mapping[str, tf.Tensor], batch: Batch, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return the losses of an objective, each example's multiplied by the weight of its class or mixture of classes.

    They are divided by the number of examples, not by the sum of their weights, as Keras does for `class_weight`.
    """
    if SOFT_TARGETS in batch:
        own = tf.linalg.matvec(batch[SOFT_TARGETS], weights)
    else:
        own = tf.gather(weights, batch["targets"])
    return {
        name: value * tf.cast(own, value.dtype) if name in objective.class_losses else value
        for name, value in losses.items()
    }


def check_class_losses(objectives: Sequence[Objective]) -> None:
    """Refuse weights of classes where no objective has a loss for them."""
    if not any(objective.class_losses for objective in objectives):
        names = ", ".join(f"'{objective.name}'" for objective in objectives)
        raise UserError(
            f"trainer.class_weights received, but no loss of {names} is one for each example of a class. Expected "
            "trainer.class_weights=null here; trainer.class_sampling changes how often classes come."
        )


INITIAL, FLOOR, CEILING = 2.0**15, 1.0, 2.0**60
"""Powers of two: scaling by them is exact. Nothing overflows at the ceiling where all gradients are 0."""
GROWTH_STEPS = 2000
MANTISSA_BITS, BIAS = 23, 127  # of float32: below its exponent, and added to it


class LossScale:
    """The factor by which the loss is multiplied before it is differentiated.

    float16 has no numbers below 6e-8, so small gradients become 0. The gradient of scale * loss is larger by the scale;
    divided by it in float32, it is the true one. Where it overflows, the step is left out and the scale halved; after
    2000 steps without overflow it is doubled (Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2).
    A loss that is itself not finite is no overflow, nor is a gradient at the floor: no lower scale would help.
    """

    def __init__(self) -> None:
        self.value = tf.Variable(INITIAL, trainable=False, dtype=tf.float32, name="loss_scale")
        self.finite_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="finite_steps")
        self.overflow_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="overflow_steps")

    def state(self) -> dict[str, tf.Variable]:
        """Return the variables by name; they are in every checkpoint."""
        return {"value": self.value, "finite_steps": self.finite_steps, "overflow_steps": self.overflow_steps}

    def divided(self, gradients: Gradients) -> Gradients:
        """Return the gradients of the loss."""
        return {
            name: None if value is None else value / tf.cast(self.value, value.dtype)
            for name, value in gradients.items()
        }

    def inner(self) -> tf.Tensor:
        """Return the scale of gradients inside a loss, such as those of a penalty: float32 scalar, a power of two.

        Such a gradient is differentiated again, by scale / inner: the whole scale would only move the underflow to the
        backward direction. The root of the scale, rounded down to a power of two, leaves room in both.
        """
        exponent = tf.bitwise.right_shift(tf.bitcast(self.value, tf.int32), MANTISSA_BITS) - BIAS
        return tf.bitcast(tf.bitwise.left_shift(exponent // 2 + BIAS, MANTISSA_BITS), tf.float32)

    def overflow(self, loss: tf.Tensor, gradients: Iterable[Gradients], inner: Sequence[tf.Tensor] = ()) -> tf.Tensor:
        """Return whether gradients overflowed for the scale: bool scalar."""
        present = [value for each in gradients for value in each.values() if value is not None]
        finite = [tf.reduce_all(tf.math.is_finite(value)) for value in present]
        lost = tf.logical_not(tf.reduce_all(tf.stack(finite))) if finite else tf.constant(False)
        lost = tf.logical_and(lost, tf.math.is_finite(loss))
        return tf.logical_and(tf.reduce_any(tf.stack([lost, *inner])), self.value > FLOOR)

    def update(self, overflow: tf.Tensor, written: tf.Tensor) -> None:
        """Lower or raise the scale at the end of a step."""
        count = tf.where(overflow, tf.constant(0, tf.int64), self.finite_steps + tf.cast(written, tf.int64))
        grows = count >= GROWTH_STEPS
        raised = tf.where(grows, tf.minimum(self.value * 2.0, CEILING), self.value)
        lowered = tf.maximum(self.value / 2.0, FLOOR)
        self.value.assign(tf.where(overflow, lowered, raised))
        self.finite_steps.assign(tf.where(grows, tf.zeros_like(count), count))
        self.overflow_steps.assign_add(tf.cast(overflow, tf.int64))


def refuse_second_scale(network: Network) -> None:
    """Refuse an optimizer that divides gradients by a scale of its own."""
    if isinstance(network.optimizer, keras.optimizers.LossScaleOptimizer):
        raise UserError(f"The optimizer of '{network.name}' is a LossScaleOptimizer. Expected its inner optimizer.")
