"""Where layers read and write their variables in a forward pass."""

from __future__ import annotations

import keras
import tensorflow as tf


class StateScope(keras.StatelessScope):
    """Hold what layers assign to their state, of which no gradient goes back to what it was made of.

    In Keras's `fit`, on TensorFlow, such a value lies in a variable when it is read again in the same pass.
    """

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        """Hold a new value.

        Args:
            update: the variable that is assigned, and the value. What is assigned to one that is trained, such as a
                normalized kernel, keeps its gradient.
        """
        variable, value = update
        if not variable.trainable and value.dtype.is_floating:
            value = tf.stop_gradient(value)
        super().add_update((variable, value))
