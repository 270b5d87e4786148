"""What the fused optimizers share: a Keras optimizer's own apply, with one kernel for each dense variable."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

LARGEST_DECAY_RATE = 0.999


class Scalars(NamedTuple):
    """Hold what all updates of one apply share. It takes the place of the learning rate in Keras' own calls.

    Attributes:
        rate: scalar, the learning rate as Keras has it.
        of_kernel: float32 scalars, by the name of the kernel's argument.
    """

    rate: tf.Tensor
    of_kernel: dict[str, tf.Tensor]


class FusedUpdate(keras.optimizers.Optimizer):
    """Update each dense float32 variable by one kernel of TensorFlow, any other by the Keras optimizer's `update_step`.

    A class derives from this one first, and from the Keras optimizer second. It has that one's arguments, variables
    and formulas, so that checkpoints of the two are interchangeable; from the same state, a step of both writes the
    same values but for float32 rounding: see `kernel_rounds_well`. All else that Keras does in an apply stays as it is:
    unscaling and clipping of gradients, weight decay, accumulation, moving averages, constraints, and replicas.

    The step count, powers of decay rates and the learning rate are computed once in an apply. Keras does so for every
    variable: its Adam makes 228 graph nodes for three dense layers, this one 22.
    """

    @abstractmethod
    def has_kernel(self) -> bool:
        """Return whether a kernel does what the settings ask for."""

    @abstractmethod
    def kernel_scalars(self, rate: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the float32 scalars of an apply, by the name of the kernel's argument.

        Args:
            rate: float32 scalar, the learning rate.
        """

    @abstractmethod
    def apply_kernel(self, variable: tf.Variable, gradient: tf.Tensor, scalars: dict[str, tf.Tensor]) -> None:
        """Write a variable and its slots.

        Args:
            variable: float32, of any shape.
            gradient: float32, of the variable's shape.
            scalars: what `kernel_scalars` returned.
        """

    def update_step(self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable, learning_rate: Any) -> None:
        """Decay a variable, then update it and its slots.

        Args:
            gradient: of the variable's shape.
            variable: one that the optimizer was built with.
            learning_rate: scalar; within an apply, the `Scalars` of it.
        """
        scalars = learning_rate if isinstance(learning_rate, Scalars) else self._scalars(learning_rate)
        if self.weight_decay is not None and self._use_weight_decay(variable):
            decay, rate = tf.cast(self.weight_decay, variable.dtype), tf.cast(scalars.rate, variable.dtype)
            variable.assign_sub(variable * decay * rate)
        if self.has_kernel() and variable.dtype == tf.float32 and not isinstance(gradient, tf.IndexedSlices):
            self.apply_kernel(variable, tf.cast(gradient, tf.float32), scalars.of_kernel)
        else:
            super().update_step(gradient, variable, scalars.rate)

    def _scalars(self, learning_rate: Any) -> Scalars:
        rate = tf.convert_to_tensor(learning_rate)
        return Scalars(rate, self.kernel_scalars(tf.cast(rate, tf.float32)) if self.has_kernel() else {})

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        super()._backend_update_step(grads, trainable_variables, self._scalars(learning_rate))

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Leave it to `update_step`, which has the learning rate; Keras computes that for every variable anew."""

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        """Return the sums over replicas; without any, what was given, where Keras makes copies."""
        return super()._all_reduce_sum_gradients(grads_and_vars) if tf.distribute.has_strategy() else grads_and_vars


def kernel_rounds_well(*decay_rates: Any) -> bool:
    """Return whether a kernel decays nearly as Keras does: no rate is above 0.999, and each is a number.

    Kernels take a decay rate b in float32 and compute 1 - b from that; Keras rounds 1 - b itself. The two differ by a
    share of up to 2^-25 / (1 - b): 1.3e-5 for 0.999, 2.4e-7 for 0.9. A second moment differs by as much, a step by half
    of it. Rates above 0.999 would differ by more, and 1 - 1e-9 would not decay at all.

    Args:
        decay_rates: of moments.
    """
    return all(isinstance(rate, float | int) and rate <= LARGEST_DECAY_RATE for rate in decay_rates)
