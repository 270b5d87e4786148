"""DCGAN: a generator and a discriminator of strided convolutions, for images of 8 pixels a side and more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import keras

from hookline.recipes.models import GENERATOR, check_role
from hookline.trainer.errors import UserError, check_choice

BatchNorm: TypeAlias = "partial[keras.layers.BatchNormalization] | None"


def dcgan(
    input_shape: Sequence[int],
    *,
    role: str | None = None,
    latent_size: int | None = None,
    stacked: int | None = None,
    filters: Sequence[int] = (32, 64),
    batch_norm: str = "both",
    batch_norm_momentum: float = 0.9,
    batch_norm_epsilon: float = 1e-3,
) -> keras.Model:
    """Return the generator or the discriminator of DCGAN (Radford et al. 2016, arXiv 1511.06434).

    Strided 4x4 convolutions halve the image in the discriminator, transposed ones double it in the generator; the
    generator ends in tanh, since images are in [-1, 1]. Neither the generator's output nor the discriminator's first
    layer has batch norm. Batch norm makes a score depend on the rest of the batch, so a gradient penalty needs
    batch_norm=generator or none.

    The recipe passes `role`, `latent_size` (how many numbers a generator starts from) and `stacked` (how many networks
    are built as one), which must be None: grouped convolutions have no CPU gradient.
    """
    latent = check_role("dcgan", role, latent_size)
    if stacked is not None:
        raise UserError("dcgan cannot be stacked: grouped convolutions lack a CPU gradient. Set task.stacked=false.")
    check_choice("batch_norm", batch_norm, ("both", "generator", "none"))
    shape, step = tuple(input_shape), 2 ** len(filters)
    if len(shape) != 3 or any(side % step for side in shape[:2]):
        raise UserError(
            f"dcgan got inputs of shape {shape}. Expected images [height, width, channels] with sides that are "
            f"multiples of {step}, for {len(filters)} filters: use other filters, or model=gan_mlp."
        )
    factory = partial(keras.layers.BatchNormalization, momentum=batch_norm_momentum, epsilon=batch_norm_epsilon)
    if role == GENERATOR:
        return _generator(shape, latent, tuple(filters), None if batch_norm == "none" else factory)
    return _discriminator(shape, tuple(filters), factory if batch_norm == "both" else None)


def _generator(shape: tuple[int, ...], latent: int, filters: tuple[int, ...], batch_norm: BatchNorm) -> keras.Model:
    height, width = (side // 2 ** len(filters) for side in shape[:2])
    inputs = keras.Input((latent,), name="noise")
    x = keras.layers.Dense(height * width * filters[-1], use_bias=batch_norm is None, name="project")(inputs)
    x = keras.layers.Reshape((height, width, filters[-1]), name="reshape")(x)
    for block, count in enumerate((*reversed(filters[:-1]), shape[2]), start=1):
        if batch_norm is not None:
            x = batch_norm(name=f"batch_norm_{block}")(x)
        x = keras.layers.Activation("relu", name=f"activation_{block}")(x)
        last = block == len(filters)
        options = {"use_bias": last or batch_norm is None, "name": "image" if last else f"conv_transpose_{block}"}
        x = keras.layers.Conv2DTranspose(count, 4, strides=2, padding="same", **options)(x)
    return keras.Model(inputs, keras.layers.Activation("tanh", name="in_range")(x), name="dcgan_generator")


def _discriminator(shape: tuple[int, ...], filters: tuple[int, ...], batch_norm: BatchNorm) -> keras.Model:
    inputs = x = keras.Input(shape, name="example")
    for block, count in enumerate(filters, start=1):
        normalized = batch_norm is not None and block > 1
        options = {"use_bias": not normalized, "name": f"conv_{block}"}
        x = keras.layers.Conv2D(count, 4, strides=2, padding="same", **options)(x)
        if batch_norm is not None and normalized:
            x = batch_norm(name=f"batch_norm_{block}")(x)
        x = keras.layers.Activation("leaky_relu", name=f"activation_{block}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, keras.layers.Dense(1, name="score")(x), name="dcgan_discriminator")
