"""Checks of a model's arguments, and the roles of adversarial networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from hookline.trainer.errors import UserError, did_you_mean

GENERATOR, DISCRIMINATOR = "generator", "discriminator"


def check_role(model: str, role: str | None, latent_size: int | None) -> int:
    """Return the size of a generator's inputs, 0 for a discriminator."""
    if role not in (GENERATOR, DISCRIMINATOR):
        raise UserError(
            f"model={model} received, which is a generator and a discriminator. Expected recipe=gan or recipe=sgan "
            "with it, or a model with one output for each class, such as model=mlp."
        )
    if role == DISCRIMINATOR:
        return 0
    check_size("latent_size", latent_size)
    return latent_size or 0


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether one input is an image: [height, width, channels], in [-1, 1]."""
    return len(shape) == 3


def check_images(model: str, input_shape: Sequence[int], smallest: int, instead: str = "model=mlp") -> tuple[int, ...]:
    """Return the shape of one image, if it has enough pixels a side."""
    shape = tuple(input_shape)
    if not is_image(shape):
        raise UserError(
            f"{model} got inputs of shape {shape}. Expected images [height, width, channels]: use model=mlp."
        )
    if min(shape[:2]) < smallest:
        raise UserError(
            f"{model} got inputs of shape {shape}. Expected images [height, width, channels] of at least {smallest} "
            f"pixels a side. Use {instead}, or larger images."
        )
    return shape


def check_size(name: str, value: Any) -> None:
    """Check a number of units, of channels, or of pixels a side."""
    if type(value) is not int or value < 1:
        raise UserError(f"Invalid {name}: {value!r}. Expected a whole number above 0.")


def check_sizes(name: str, values: Any, *, least: int = 0, most: int | None = None) -> None:
    """Check a list of numbers of units or channels, and its length."""
    listed = isinstance(values, list | tuple) and least <= len(values) <= (len(values) if most is None else most)
    if not listed or not all(type(each) is int and each > 0 for each in values):
        length = f"{least} " if least == most else "a list of one or more " if least else "a list of "
        raise UserError(f"Invalid {name}: {values!r}. Expected {length}whole numbers above 0, such as [32, 64, 128].")


def check_activation(activation: str) -> None:
    """Check the name of a Keras activation."""
    try:
        keras.activations.get(activation)
    except (ValueError, TypeError):
        known = [name for name in dir(keras.activations) if name[0].islower()]
        raise UserError(
            f"Unknown activation {activation!r}.{did_you_mean(str(activation), known)} "
            "Expected the name of a Keras activation, such as hard_tanh."
        ) from None


def check_dropout(dropout: float) -> None:
    """Check a share of activations to drop."""
    if not 0.0 <= dropout < 1.0:
        raise UserError(f"Invalid dropout: {dropout!r}. Expected a number in [0, 1).")


def batch_norm_factory(
    momentum: float, epsilon: float, *, scale: bool = True
) -> partial[keras.layers.BatchNormalization]:
    """Return what makes batch norm layers of one kind, each of its own name."""
    if not 0.0 <= momentum < 1.0:
        raise UserError(f"Invalid batch_norm_momentum: {momentum!r}. Expected a number in [0, 1), such as 0.9.")
    if not epsilon > 0.0:
        raise UserError(f"Invalid batch_norm_epsilon: {epsilon!r}. Expected a number above 0, such as 1e-3.")
    return partial(keras.layers.BatchNormalization, momentum=momentum, epsilon=epsilon, scale=scale)
