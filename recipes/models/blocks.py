"""What the networks here are put together from, and checks of their arguments."""

from __future__ import annotations

import keras

from trainer.errors import UserError, did_you_mean


class BatchNormFactory:
    """Make batch norm layers of one kind."""

    def __init__(self, *, momentum: float, epsilon: float, scale: bool) -> None:
        """Check the arguments.

        Args:
            momentum: in [0, 1): the share of the old moving statistics that a step keeps.
            epsilon: above 0; added to the variance.
            scale: whether the layers learn a scale beside the offset.

        Raises:
            UserError: a value out of range.
        """
        if not 0.0 <= momentum < 1.0:
            raise UserError(f"Invalid batch_norm_momentum: {momentum!r}. Expected a number in [0, 1), such as 0.9.")
        if not epsilon > 0.0:
            raise UserError(f"Invalid batch_norm_epsilon: {epsilon!r}. Expected a number above 0, such as 1e-3.")
        self.options = {"momentum": momentum, "epsilon": epsilon, "scale": scale}

    def __call__(self, name: str) -> keras.layers.BatchNormalization:
        """Return a layer.

        Args:
            name: of the layer.
        """
        return keras.layers.BatchNormalization(**self.options, name=name)


def check_activation(activation: str) -> str:
    """Return the name of a Keras activation, or raise a UserError.

    Args:
        activation: such as "hard_tanh".
    """
    try:
        keras.activations.get(activation)
    except (ValueError, TypeError):
        known = [name for name in dir(keras.activations) if name[0].islower()]
        raise UserError(
            f"Unknown activation {activation!r}.{did_you_mean(str(activation), known)} "
            "Expected the name of a Keras activation, such as hard_tanh."
        ) from None
    return activation


def check_dropout(dropout: float) -> float:
    """Return a share of activations to drop, or raise a UserError.

    Args:
        dropout: in [0, 1).
    """
    if not 0.0 <= dropout < 1.0:
        raise UserError(f"Invalid dropout: {dropout!r}. Expected a number in [0, 1).")
    return dropout
