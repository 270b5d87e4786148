"""A plain convolutional network: no shortcuts, as small or as large as its list of filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hookline.recipes.models.roles import BatchNormFactory, check_activation, check_dropout
from hookline.trainer.errors import UserError, unknown_name

HEADS = ("global_pooling", "flatten")


def plain_cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    filters: Sequence[int] = (24, 48, 96, 128),
    first_stride: int = 1,
    head: str = "global_pooling",
    dropout: float = 0.0,
    activation: str = "relu",
    batch_norm_momentum: float = 0.9,
    batch_norm_epsilon: float = 1e-3,
) -> keras.Model:
    """Return blocks of convolution 3x3, batch norm, activation and pooling 2x2, then a dense layer.

    For photographs of 96x96x3 with the default filters and a first stride of 2, an image takes 17 million
    multiplications; with a first stride of 1, 70 million.

    Args:
        input_shape: of one image: height, width, channels. Each block halves height and width, and so does a stride
            of 2; one pixel must be left.
        classes: number of outputs: logits, or dimensions of an embedding.
        filters: channels of each block.
        first_stride: of the first convolution; 2 makes the network about four times as fast.
        head: what comes before the dense layer: "global_pooling" (the mean of each channel: few weights, position in
            the image is ignored) or "flatten" (position counts).
        dropout: in [0, 1): share of the head's activations that training drops; 0 leaves the layer out.
        activation: name of a Keras activation.
        batch_norm_momentum: in [0, 1): the share of the old moving statistics that a step keeps.
        batch_norm_epsilon: above 0; added to the variance.

    Returns:
        A functional model: [batch, *input_shape] to [batch, classes].

    Raises:
        UserError: images of another rank or too small, or an argument out of range.
    """
    _check_sizes(filters, first_stride)
    if head not in HEADS:
        raise unknown_name("head", str(head), HEADS)
    check_activation(activation)
    check_dropout(dropout)
    shape = tuple(input_shape)
    _check_images(shape, first_stride * 2 ** len(filters), len(filters))
    batch_norm = BatchNormFactory(momentum=batch_norm_momentum, epsilon=batch_norm_epsilon, scale=True)
    inputs = x = keras.Input(shape, name="image")
    for block, count in enumerate(filters, start=1):
        name, strides = f"block_{block}", first_stride if block == 1 else 1
        x = keras.layers.Conv2D(count, 3, strides, padding="same", use_bias=False, name=f"{name}_conv")(x)
        x = batch_norm(f"{name}_batch_norm")(x)
        x = keras.layers.Activation(activation, name=f"{name}_activation")(x)
        x = keras.layers.MaxPooling2D(2, name=f"{name}_pool")(x)
    layer = keras.layers.Flatten if head == "flatten" else keras.layers.GlobalAveragePooling2D
    x = layer(name=head)(x)
    if dropout:
        x = keras.layers.Dropout(dropout, name="dropout")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, name="outputs")(x), name="plain_cnn")


def _check_sizes(filters: Any, first_stride: Any) -> None:
    listed = isinstance(filters, list | tuple) and len(filters) > 0
    if not listed or not all(type(count) is int and count > 0 for count in filters):
        raise UserError(
            f"Invalid filters: {filters!r}. Expected a list of whole numbers above 0, such as [16, 32, 64]."
        )
    if type(first_stride) is not int or not 1 <= first_stride <= 2:
        raise UserError(f"Invalid first_stride: {first_stride!r}. Expected 1 or 2.")


def _check_images(shape: tuple[int, ...], smallest: int, blocks: int) -> None:
    if len(shape) != 3 or min(shape[:2]) < smallest:
        raise UserError(
            f"plain_cnn got inputs of shape {shape}. Expected images [height, width, channels] of at least {smallest} "
            f"pixels a side for {blocks} blocks. Use fewer filters, such as model.filters=[16,32], or larger images."
        )
