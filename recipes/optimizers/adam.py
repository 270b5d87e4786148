"""Adam by a fused kernel."""

from __future__ import annotations

import keras
import tensorflow as tf

from recipes.optimizers.fused_update import FusedUpdate, kernel_rounds_well


@keras.saving.register_keras_serializable(package="hookline")
class Adam(FusedUpdate, keras.optimizers.Adam):
    """Do what `keras.optimizers.Adam` does: its arguments, its variables, its formulas, one kernel for each variable.

    With `amsgrad`, or a beta above 0.999, the update is Keras' own.
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
