"""Convolutional networks: a plain CNN with any number of blocks, Larq's tutorial CNN, a CNN with two heads, U-Net."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from hookline.recipes.models import check_images
from hookline.trainer.errors import check_choice, check_integer

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
    """Return blocks of 3x3 convolution, batch norm, activation and 2x2 max pooling, then a dense layer.

    An image of 96x96x3 takes 17 million multiplications with the default filters and a first stride of 2, or 70 million
    with a first stride of 1.
    """
    check_integer("first_stride", first_stride, 1, 2)
    check_choice("head", head, ("global_pooling", "flatten"))
    shape = check_images("plain_cnn", input_shape, first_stride * 2 ** len(filters), FEWER)
    batch_norm = partial(keras.layers.BatchNormalization, momentum=batch_norm_momentum, epsilon=batch_norm_epsilon)
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


def larq_tutorial_cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    activation: str = "hard_tanh",
    batch_norm_momentum: float = 0.9,
    batch_norm_epsilon: float = 1e-3,
    logits_scale: bool = True,
) -> keras.Model:
    """Return convolutions of 32, 64 and 64 channels, then dense layers of 64 and `classes` units.

    For 28x28x1 images and 10 classes, it has 93,088 kernel weights and 234 batch norm channels: 13.19 KiB with one bit
    per weight and two floats per channel. In the tutorial, the quantizers are part of the layers; here a hook adds
    them, and the network without the hook is the float baseline (see `mlp`).
    """
    shape = check_images("larq_tutorial_cnn", input_shape, 18)  # three convolutions and two poolings leave one pixel
    batch_norm = partial(keras.layers.BatchNormalization, momentum=batch_norm_momentum, epsilon=batch_norm_epsilon)
    inputs = x = keras.Input(shape, name="image")
    for block, (filters, pools) in enumerate([(32, True), (64, True), (64, False)], start=1):
        x = keras.layers.Conv2D(filters, 3, use_bias=False, name=f"conv_{block}")(x)
        if pools:  # before batch norm: max pooling of signs would nearly always give +1
            x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
        x = batch_norm(scale=False, name=f"batch_norm_{block}")(x)
        x = keras.layers.Activation(activation, name=f"activation_{block}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(64, use_bias=False, name="dense_1")(x)
    x = batch_norm(scale=False, name="batch_norm_4")(x)
    x = keras.layers.Activation(activation, name="activation_4")(x)
    x = keras.layers.Dense(classes, use_bias=False, name="logits")(x)
    x = batch_norm(scale=logits_scale, name="batch_norm_logits")(x)
    return keras.Model(inputs, x, name="larq_tutorial_cnn")


def two_headed_cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    filters: Sequence[int] = (16, 32),
    kernel_size: int = 3,
    class_units: Sequence[int] = (64,),
    domain_units: Sequence[int] = (64,),
    activation: str = "relu",
) -> keras.Model:
    """Return blocks of convolution, activation and 2x2 max pooling, with two dense heads on top.

    The body and the heads are those of Ganin et al. 2016, figure 4 a, but smaller: the domain is predicted from the
    feature maps of the last block, not from a dense layer above them. The domain head starts with an identity layer,
    "domain_entrance": a hook that changes its gradient affects the whole body, but not the head.

    There is no batch norm: its statistics would leak the appearance of target images into a network trained without
    adaptation, which would then not be a fair baseline.
    """
    shape = check_images("two_headed_cnn", input_shape, 2 ** len(filters), FEWER)
    inputs = x = keras.Input(shape, name="image")
    for block, count in enumerate(filters, start=1):
        x = keras.layers.Conv2D(count, kernel_size, padding="same", activation=activation, name=f"conv_{block}")(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
    features = keras.layers.Flatten(name="features")(x)
    logits = _head(features, "class", class_units, classes, activation)
    entrance = keras.layers.Identity(name="domain_entrance")(features)
    domain = _head(entrance, "domain", domain_units, 1, activation)
    return keras.Model(inputs, [logits, domain], name="two_headed_cnn")


def _head(features: Any, name: str, units: Sequence[int], outputs: int, activation: str) -> Any:
    x = features
    for number, count in enumerate(units, start=1):
        x = keras.layers.Dense(count, activation=activation, name=f"{name}_dense_{number}")(x)
    return keras.layers.Dense(outputs, name=f"{name}_logits")(x)


def u_net(
    input_shape: Sequence[int],
    classes: int,
    *,
    filters: Sequence[int] = (16, 32, 64),
    activation: str = "relu",
    batch_norm_momentum: float = 0.9,
    batch_norm_epsilon: float = 1e-3,
) -> keras.Model:
    """Return the network of Ronneberger et al. 2015 (arXiv 1505.04597), with batch norm and padding.

    Each level except the last halves height and width in the contracting path and doubles them in the expanding path,
    which also receives the features of the same size. The outputs are logits [batch, height, width, classes].
    """
    shape = check_images("u_net", input_shape, 2 ** (len(filters) - 1), FEWER)
    batch_norm = partial(keras.layers.BatchNormalization, momentum=batch_norm_momentum, epsilon=batch_norm_epsilon)

    def block(x: keras.KerasTensor, count: int, name: str) -> keras.KerasTensor:
        for part in ("a", "b"):
            x = keras.layers.Conv2D(count, 3, padding="same", use_bias=False, name=f"{name}_conv_{part}")(x)
            x = batch_norm(name=f"{name}_batch_norm_{part}")(x)
            x = keras.layers.Activation(activation, name=f"{name}_activation_{part}")(x)
        return x

    inputs = x = keras.Input(shape, name="image")
    kept = []
    for level, count in enumerate(filters[:-1], start=1):
        x = block(x, count, f"down_{level}")
        kept.append(x)
        x = keras.layers.MaxPooling2D(2, padding="same", name=f"down_{level}_pool")(x)
    x = block(x, filters[-1], "bottom")
    for level, count in reversed(list(enumerate(filters[:-1], start=1))):
        x = keras.layers.UpSampling2D(2, name=f"up_{level}_resize")(x)
        height, width = kept[level - 1].shape[1:3]
        spare = ((0, x.shape[1] - height), (0, x.shape[2] - width))  # an odd size was rounded up on the way down
        if spare != ((0, 0), (0, 0)):
            x = keras.layers.Cropping2D(spare, name=f"up_{level}_crop")(x)
        x = keras.layers.Concatenate(name=f"up_{level}_join")([x, kept[level - 1]])
        x = block(x, count, f"up_{level}")
    return keras.Model(inputs, keras.layers.Conv2D(classes, 1, name="outputs")(x), name="u_net")
