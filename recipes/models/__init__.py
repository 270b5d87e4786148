"""Networks that recipes train: plain Keras models, and checks of their arguments, which `configs/model/` explains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from hookline.recipes import check_choice, check_number, check_whole
from hookline.trainer.errors import UserError

GENERATOR, DISCRIMINATOR = "generator", "discriminator"


def check_role(model: str, role: str | None, latent_size: int | None) -> int:
    """Return the size of a generator's inputs, 0 for a discriminator."""
    if role not in (GENERATOR, DISCRIMINATOR):
        raise UserError(
            f"model={model} received, which is a generator and a discriminator. Expected recipe=gan or recipe=sgan "
            "with it, or a model with one output for each class, such as model=mlp."
        )
    return 0 if role == DISCRIMINATOR else latent_size or 0


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether one input is an image: [height, width, channels], in [-1, 1]."""
    return len(shape) == 3


def check_images(model: str, input_shape: Sequence[int], smallest: int, instead: str = "model=mlp") -> tuple[int, ...]:
    """Return the shape of one image, if it has enough pixels a side."""
    shape = tuple(input_shape)
    if not is_image(shape) or min(shape[:2]) < smallest:
        raise UserError(
            f"{model} got inputs of shape {shape}. Expected images [height, width, channels] of at least {smallest} "
            f"pixels a side. Use {instead}, or larger images."
        )
    return shape


def check_sizes(name: str, values: Any, *, least: int = 0) -> None:
    """Check a list of numbers of units or channels, and its length."""
    if not isinstance(values, list | tuple) or len(values) < least:
        raise UserError(f"{name}={values!r} received. Expected a list of {least} or more, such as [32,64].")
    for each in values:
        check_whole(name, each, 1)


def check_activation(activation: str) -> None:
    """Check the name of a Keras activation."""
    try:
        keras.activations.get(activation)
    except (ValueError, TypeError):
        check_choice("activation", activation, [name for name in dir(keras.activations) if name[0].islower()])


def check_dropout(dropout: float) -> None:
    """Check a share of activations to drop."""
    if check_number("dropout", dropout, 0, 1) == 1:
        raise UserError("dropout=1 received: nothing would be left. Expected less.")


def batch_norm_factory(
    momentum: float, epsilon: float, *, scale: bool = True
) -> partial[keras.layers.BatchNormalization]:
    """Return what makes batch norm layers of one kind, each of its own name."""
    if check_number("batch_norm_momentum", momentum, 0, 1) == 1:
        raise UserError("batch_norm_momentum=1 received: the averages would never move. Expected less, such as 0.9.")
    check_number("batch_norm_epsilon", epsilon, 0, open_below=True)
    return partial(keras.layers.BatchNormalization, momentum=momentum, epsilon=epsilon, scale=scale)
