"""RMSprop by a fused kernel, where it has momentum."""

from __future__ import annotations

import keras
import tensorflow as tf

from recipes.optimizers.fused_update import FusedUpdate, kernel_rounds_well


@keras.saving.register_keras_serializable(package="hookline")
class RMSprop(FusedUpdate, keras.optimizers.RMSprop):
    """Do what `keras.optimizers.RMSprop` does: its arguments, its variables, its formulas; a kernel with momentum.

    Without momentum, the update is Keras' own: the kernel wants a slot that Keras lacks. A scratch variable
    in its place would halve the time of the update, but be a second copy of the weights in memory, and a state that no
    checkpoint holds. The update is Keras' own as well with `centered`, where the difference of two averages, ever so
    little apart, turns rounding into steps; and with a rho above 0.999.
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
