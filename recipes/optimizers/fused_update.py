"""Keras optimizers with one update op per variable."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

LARGEST_DECAY_RATE = 0.999


class Scalars(NamedTuple):
    """Values shared by all updates of one `apply`. They replace the learning rate in Keras' own calls."""

    rate: tf.Tensor  # scalar, the learning rate as Keras passes it
    of_kernel: dict[str, tf.Tensor]  # float32 scalars by name of the kernel's argument


class FusedUpdate(keras.optimizers.Optimizer):
    """Update dense float32 variables with one TensorFlow kernel each, others with the Keras optimizer's `update_step`.

    A subclass derives from this class first, and from the Keras optimizer second. It has the latter's arguments,
    variables and formulas, so checkpoints of the two are interchangeable; from the same state, both write the same
    values up to float32 rounding (see `kernel_rounds_well`). The rest of Keras' `apply` is unchanged: unscaling and
    clipping of gradients, weight decay, accumulation, moving averages, constraints, and replicas.

    The step count, powers of decay rates and the learning rate are computed once per `apply`, not for every variable.
    """

    def has_kernel(self) -> bool:
        """Return whether a kernel supports the settings."""
        return True

    @abstractmethod
    def kernel_scalars(self, rate: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the float32 scalars of one `apply`, by name of the kernel's argument."""

    @abstractmethod
    def apply_kernel(self, variable: tf.Variable, gradient: tf.Tensor, scalars: dict[str, tf.Tensor]) -> None:
        """Update a variable and its slots."""

    def update_step(self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable, learning_rate: Any) -> None:
        """Apply weight decay to a variable, then update it and its slots."""
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
        """Do nothing: `update_step` decays, with a learning rate that Keras would recompute for every variable."""

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        """Return the sums over replicas, or without replicas the inputs themselves, which Keras would copy."""
        return super()._all_reduce_sum_gradients(grads_and_vars) if tf.distribute.has_strategy() else grads_and_vars


def kernel_rounds_well(*decay_rates: Any) -> bool:
    """Return whether a kernel rounds decay rates nearly as Keras does: each is a number of at most 0.999.

    Kernels compute 1 - b from b in float32, with a relative error of up to 2^-25 / (1 - b); for 0.999 it is 1.3e-5.
    """
    return all(isinstance(rate, float | int) and rate <= LARGEST_DECAY_RATE for rate in decay_rates)


@keras.saving.register_keras_serializable(package="hookline")
class SGD(FusedUpdate, keras.optimizers.SGD):
    """Replace `keras.optimizers.SGD`: same arguments, variables and formulas, with one kernel per variable."""

    def kernel_scalars(self, rate: tf.Tensor) -> dict[str, tf.Tensor]:
        if not self.momentum:
            return {"alpha": rate}
        return {"lr": rate, "momentum": tf.constant(self.momentum, tf.float32)}

    def apply_kernel(self, variable: tf.Variable, gradient: tf.Tensor, scalars: dict[str, tf.Tensor]) -> None:
        if not self.momentum:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, delta=gradient, **scalars)
            return
        momentum = self.momentums[self._get_variable_index(variable)].value
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle, accum=momentum.handle, grad=gradient, use_nesterov=self.nesterov, **scalars
        )


@keras.saving.register_keras_serializable(package="hookline")
class RMSprop(FusedUpdate, keras.optimizers.RMSprop):
    """Replace `keras.optimizers.RMSprop`: same arguments, variables and formulas, with one kernel if it has momentum.

    Keras' own update is used without momentum, since the kernel needs a slot that Keras lacks; with `centered`, where
    the tiny difference of two averages amplifies rounding errors into steps; and with a rho above 0.999.
    """

    def has_kernel(self) -> bool:
        return self.momentum > 0 and not self.centered and kernel_rounds_well(self.rho)

    def kernel_scalars(self, rate: tf.Tensor) -> dict[str, tf.Tensor]:
        settings = {"rho": self.rho, "momentum": self.momentum, "epsilon": self.epsilon}
        return {"lr": rate} | {name: tf.constant(value, tf.float32) for name, value in settings.items()}

    def apply_kernel(self, variable: tf.Variable, gradient: tf.Tensor, scalars: dict[str, tf.Tensor]) -> None:
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index].value, self._velocities[index].value
        tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle, ms=velocity.handle, mom=momentum.handle, grad=gradient, **scalars
        )


@keras.saving.register_keras_serializable(package="hookline")
class Adam(FusedUpdate, keras.optimizers.Adam):
    """Replace `keras.optimizers.Adam`: same arguments, variables and formulas, with one kernel per variable.

    With `amsgrad`, or a beta above 0.999, Keras' own update is used.
    """

    def has_kernel(self) -> bool:
        return not self.amsgrad and kernel_rounds_well(self.beta_1, self.beta_2)

    def kernel_scalars(self, rate: tf.Tensor) -> dict[str, tf.Tensor]:
        step = tf.cast(self.iterations + 1, tf.float32)
        beta_1, beta_2 = tf.constant(self.beta_1, tf.float32), tf.constant(self.beta_2, tf.float32)
        return {
            "lr": rate,
            "beta1": beta_1,
            "beta2": beta_2,
            "beta1_power": tf.pow(beta_1, step),
            "beta2_power": tf.pow(beta_2, step),
            "epsilon": tf.constant(self.epsilon, tf.float32),
        }

    def apply_kernel(self, variable: tf.Variable, gradient: tf.Tensor, scalars: dict[str, tf.Tensor]) -> None:
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index].value, self._velocities[index].value
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=momentum.handle, v=velocity.handle, grad=gradient, **scalars
        )


@keras.saving.register_keras_serializable(package="hookline")
class AdamW(Adam, keras.optimizers.AdamW):
    """Replace `keras.optimizers.AdamW`: same arguments, variables and formulas, with the kernel of `Adam`."""
