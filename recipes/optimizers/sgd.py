"""Stochastic gradient descent, with or without momentum, by fused kernels."""

from __future__ import annotations

import keras
import tensorflow as tf

from recipes.optimizers.fused_update import FusedUpdate


@keras.saving.register_keras_serializable(package="hookline")
class SGD(FusedUpdate, keras.optimizers.SGD):
    """Do what `keras.optimizers.SGD` does: its arguments, its variables, its formulas, one kernel for each variable."""

    def has_kernel(self) -> bool:
        return True

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
