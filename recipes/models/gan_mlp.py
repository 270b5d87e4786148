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
    """Return a generator or a discriminator of dense layers; for points, images and anything else of a fixed shape.

    A generator of images [height, width, channels] ends in tanh, as images lie in [-1, 1]; any other is linear. There
    is no batch norm: the output for one example does not depend on the others, as gradient penalties require.

    Kernels start uniform as in He et al. 2015. So do the biases of hidden layers, in [-1, 1] in the first of them: with
    biases of 0 every unit has its kink at the origin, and it takes long until a network can tell many places apart.

    The recipe gives the role, how many numbers a generator starts from, and how many networks of one shape are
    `stacked` as one, each with weights of its own; inputs and outputs then have the networks before the batch. Scores
    are above 0 for what a discriminator takes for real.
    """
    latent = check_role("gan_mlp", role, latent_size)
    shape = tuple(input_shape)
    leading = () if stacked is None else (stacked,)  # the axes before that of the batch
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
    """Return x behind a dense layer whose biases start in [-bias, bias)."""
    limit, uniform = math.sqrt(6.0 / x.shape[-1]), keras.initializers.RandomUniform
    start: dict[str, Any] = {"kernel_initializer": uniform(-limit, limit)}
    start["bias_initializer"] = uniform(-bias, bias) if bias else "zeros"
    if not leading:
        return keras.layers.Dense(units, name=name, **start)(x)
    # One batched matrix product computes what as many `Dense` layers would: each network has its own matrix and bias.
    return keras.layers.EinsumDense("nbi,nio->nbo", (None, units), bias_axes="no", name=name, **start)(x)


def _hidden(x: Any, leading: tuple[int, ...], units: Sequence[int], activation: str) -> Any:
    for block, count in enumerate(units, start=1):
        bias = 1.0 if block == 1 else 1.0 / math.sqrt(x.shape[-1])
        x = _dense(x, leading, count, f"dense_{block}", bias)
        x = keras.layers.Activation(activation, name=f"activation_{block}")(x)
    return x
