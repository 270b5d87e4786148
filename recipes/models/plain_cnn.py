"""A plain convolutional network: no shortcuts, as small or as large as its list of filters."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from hookline.recipes import check_choice
from hookline.recipes.models import batch_norm_factory, check_activation, check_dropout, check_images, check_sizes
from hookline.trainer.errors import UserError

HEADS = ("global_pooling", "flatten")
FEWER = "fewer filters, such as model.filters=[16,32]"


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
    """
    check_sizes("filters", filters, least=1)
    if type(first_stride) is not int or not 1 <= first_stride <= 2:
        raise UserError(f"Invalid first_stride: {first_stride!r}. Expected 1 or 2.")
    check_choice("head", head, HEADS)
    check_activation(activation)
    check_dropout(dropout)
    shape = check_images("plain_cnn", input_shape, first_stride * 2 ** len(filters), FEWER)
    batch_norm = batch_norm_factory(batch_norm_momentum, batch_norm_epsilon)
    inputs = x = keras.Input(shape, name="image")
    for block, count in enumerate(filters, start=1):
        name, strides = f"block_{block}", first_stride if block == 1 else 1
        x = keras.layers.Conv2D(count, 3, strides, padding="same", use_bias=False, name=f"{name}_conv")(x)
        x = batch_norm(name=f"{name}_batch_norm")(x)
        x = keras.layers.Activation(activation, name=f"{name}_activation")(x)
        x = keras.layers.MaxPooling2D(2, name=f"{name}_pool")(x)
    layer = keras.layers.Flatten if head == "flatten" else keras.layers.GlobalAveragePooling2D
    x = layer(name=head)(x)
    if dropout:
        x = keras.layers.Dropout(dropout, name="dropout")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, name="outputs")(x), name="plain_cnn")
