"""Shared parts of models."""

from __future__ import annotations

import keras

from hookline.trainer.errors import UserError, did_you_mean
from hookline.trainer.input.checks import is_whole_number

GENERATOR, DISCRIMINATOR = "generator", "discriminator"


def check_role(model: str, role: str | None, latent_size: int | None) -> int:
    """Return the size of a generator's inputs, 0 for a discriminator.

    Args:
        model: what the model is called, for messages.
        role: "generator" or "discriminator", as a recipe gives it.
        latent_size: numbers of one input of a generator.

    Raises:
        UserError: the recipe gives no role.
    """
    if role not in (GENERATOR, DISCRIMINATOR):
        raise UserError(
            f"model={model} received, which is a generator and a discriminator. Expected recipe=gan or recipe=sgan "
            "with it, or a model with one output for each class, such as model=mlp."
        )
    if role == DISCRIMINATOR:
        return 0
    if latent_size is None or not is_whole_number(latent_size) or latent_size < 1:
        raise UserError(f"latent_size={latent_size} received. Expected a whole number of at least 1.")
    return latent_size


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether one input is an image: [height, width, channels], in [-1, 1]."""
    return len(shape) == 3


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
