"""Dense layers of several networks in one: every weight has the networks along its first axis."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="hookline")
class StackedDense(keras.layers.Layer):
    """Multiply the inputs of each network by a matrix of its own, and add a bias of its own.

    One batched matrix product computes what as many `Dense` layers would: network n sees row n of the inputs, and no
    gradient passes from one network to another.
    """

    def __init__(
        self,
        units: int,
        count: int,
        *,
        kernel_initializer: Any = None,
        bias_initializer: Any = "zeros",
        **options: Any,
    ) -> None:
        """Take the sizes.

        Args:
            units: outputs of each network.
            count: number of networks.
            kernel_initializer: one that ignores shapes: others would count the networks as inputs. None for the uniform
                values of Glorot and Bengio 2010 for a single network.
            bias_initializer: likewise, of the biases.
            **options: those of every Keras layer, such as name and dtype.
        """
        super().__init__(**options)
        self.units = units
        self.count = count
        self.kernel_initializer = None if kernel_initializer is None else keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create kernel [count, inputs, units] and bias [count, 1, units]."""
        inputs = int(input_shape[-1] or 0)
        start = self.kernel_initializer or uniform((6.0 / (inputs + self.units)) ** 0.5)
        self.kernel = self.add_weight((self.count, inputs, self.units), initializer=start, name="kernel")
        self.bias = self.add_weight((self.count, 1, self.units), initializer=self.bias_initializer, name="bias")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return [count, batch, units] for inputs [count, batch, inputs]."""
        return keras.ops.matmul(inputs, self.kernel) + self.bias

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the outputs."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """Return plain values that `from_config` makes this layer of."""
        kernel, bias = (
            None if each is None else keras.initializers.serialize(each)
            for each in (self.kernel_initializer, self.bias_initializer)
        )
        sizes = {"units": self.units, "count": self.count}
        return {**super().get_config(), **sizes, "kernel_initializer": kernel, "bias_initializer": bias}


def uniform(limit: float) -> keras.initializers.Initializer:
    """Return an initializer of values in [-limit, limit), whatever the shape.

    Args:
        limit: above 0.
    """
    return keras.initializers.RandomUniform(-limit, limit)
