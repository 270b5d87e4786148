"""Multilayer perceptrons for a generator and its discriminator, one pair or several stacked ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

from hookline.recipes.models import GENERATOR, check_role, is_image


def gan_mlp(
    input_shape: Sequence[int],
    *,
    role: str | None = None,
    latent_size: int | None = None,
    stacked: int | None = None,
    units: Sequence[int] = (128, 128, 128),
    discriminator_units: Sequence[int] | None = None,
    activation: str = "relu",
    discriminator_activation: str = "leaky_relu",
) -> keras.Model:
    """Return a generator or a discriminator of dense layers, for points, images or any other fixed shape.

    A generator of images [height, width, channels] ends in tanh, since images are in [-1, 1]; any other is linear.
    There is no batch norm: the output for one example does not depend on others, as gradient penalties require.

    Kernels start He uniform (He et al. 2015). Biases of hidden layers start uniform, too, in [-1, 1] in the first: with
    zero biases, every unit has its kink at the origin, and it takes long until a network can tell many places apart.

    The recipe passes `role`, `latent_size` (how many numbers a generator starts from) and `stacked` (how many networks
    of one shape are built as one, each with its own weights; inputs and outputs then have a leading axis of networks).
    Scores are above 0 for examples that a discriminator classifies as real.
    """
    latent = check_role("gan_mlp", role, latent_size)
    shape = tuple(input_shape)
    leading = () if stacked is None else (stacked,)  # axes before the batch axis
    if role == GENERATOR:
        inputs = x = keras.Input(batch_shape=(*leading, None, latent), name="noise")
        x = _dense(_hidden(x, leading, units, activation), leading, math.prod(shape), "sample")
        if is_image(shape):
            x = keras.layers.Activation("tanh", name="in_range")(x)
        if len(shape) != 1:
            x = keras.ops.reshape(x, (*leading, -1, *shape))
        return keras.Model(inputs, x, name="gan_mlp_generator")
    inputs = x = keras.Input(batch_shape=(*leading, None, *shape), name="example")
    if len(shape) != 1:
        x = keras.ops.reshape(x, (*leading, -1, math.prod(shape)))
    x = _hidden(x, leading, discriminator_units or units, discriminator_activation)
    return keras.Model(inputs, _dense(x, leading, 1, "score"), name="gan_mlp_discriminator")


def _dense(x: Any, leading: tuple[int, ...], units: int, name: str, bias: float = 0.0) -> Any:
    """Return the output of a dense layer with biases initialized in [-bias, bias)."""
    limit, uniform = math.sqrt(6.0 / x.shape[-1]), keras.initializers.RandomUniform
    start: dict[str, Any] = {"kernel_initializer": uniform(-limit, limit)}
    start["bias_initializer"] = uniform(-bias, bias) if bias else "zeros"
    if not leading:
        return keras.layers.Dense(units, name=name, **start)(x)
    # One batched matrix product replaces as many `Dense` layers: each network has its own kernel and bias.
    return keras.layers.EinsumDense("nbi,nio->nbo", (None, units), bias_axes="no", name=name, **start)(x)


def _hidden(x: Any, leading: tuple[int, ...], units: Sequence[int], activation: str) -> Any:
    for block, count in enumerate(units, start=1):
        bias = 1.0 if block == 1 else 1.0 / math.sqrt(x.shape[-1])
        x = _dense(x, leading, count, f"dense_{block}", bias)
        x = keras.layers.Activation(activation, name=f"activation_{block}")(x)
    return x
