"""Where layers read and assign their variables in a forward pass."""

from __future__ import annotations

from collections.abc import Iterable

import keras
import tensorflow as tf

from trainer.errors import UserError


class StateScope(keras.StatelessScope):
    """Hold the values of variables, and what layers assign to their state.

    No gradient goes through a value that is read after it was assigned, as in Keras's `fit`, where it lies in a
    variable by then.

    Attributes:
        state_mapping: the values of now, by the identity of the variable.
    """

    def __init__(self, values: Iterable[tuple[keras.Variable, tf.Tensor]]) -> None:
        """Take the values that a pass starts from.

        Args:
            values: with their variables.
        """
        super().__init__(list(values), collect_losses=True)
        self._assigned: dict[int, keras.Variable] = {}

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        """Hold a new value.

        Args:
            update: the variable that a layer assigns, and the value.
        """
        self._assigned[id(update[0])] = update[0]
        super().add_update(update)

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        """Return the value of now; None where the scope has none.

        Args:
            variable: that a layer reads.
        """
        value = super().get_current_value(variable)
        return tf.stop_gradient(value) if id(variable) in self._assigned else value

    def check_assigned(self) -> None:
        """Refuse, after a pass, that a layer has assigned what the optimizer changes, too.

        Raises:
            UserError: names the variable.
        """
        for variable in self._assigned.values():
            if variable.trainable:
                raise UserError(
                    f"A layer assigns '{variable.path}' in its forward pass, and the optimizer trains it: what the "
                    "layer assigns would be lost. Expected a layer that assigns weights with trainable=False alone."
                )
