"""LeNet++ of the center loss paper: six convolutions, then so few features that they can be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from trainer.errors import UserError

SMALLEST = 8  # pixels a side: three poolings leave one


def lenet_plus_plus(
    input_shape: Sequence[int],
    classes: int,
    *,
    features: int = 2,
    filters: Sequence[int] = (32, 64, 128),
    kernel_size: int = 5,
) -> keras.Model:
    """Return three blocks of two convolutions and a pooling, a dense layer of features, and one of logits.

    Convolutions are padded with zeros and have a PReLU with a slope for each channel, 0.25 at first; poolings are 2 by
    2 (Wen et al. 2016, table 1). The features have no activation, so that they spread in all directions, and the
    logits no bias, so that classes differ by the direction of their features.

    Args:
        input_shape: of one image: height, width, channels; 8 pixels a side at least.
        classes: number of logits.
        features: units of the layer before the logits.
        filters: channels of the two convolutions of each block; three numbers.
        kernel_size: of the convolutions, in pixels a side.

    Returns:
        A functional model: [batch, *input_shape] to logits [batch, classes].

    Raises:
        UserError: images of another rank or too small, or an argument out of range.
    """
    shape = tuple(input_shape)
    if len(shape) != 3 or min(shape[:2]) < SMALLEST:
        raise UserError(
            f"lenet_plus_plus got inputs of shape {shape}. Expected images [height, width, channels] of at least "
            f"{SMALLEST} pixels a side. Use another model, such as model=mlp, or larger images."
        )
    given: Any = filters  # a config may hold anything
    if not isinstance(given, list | tuple) or len(given) != 3 or not all(_is_count(each) for each in given):
        raise UserError(f"Invalid filters: {filters!r}. Expected three whole numbers above 0, such as [32, 64, 128].")
    for name, value in (("features", features), ("kernel_size", kernel_size)):
        if not _is_count(value):
            raise UserError(f"Invalid {name}: {value!r}. Expected a whole number above 0.")
    slope = keras.initializers.Constant(0.25)
    inputs = x = keras.Input(shape, name="image")
    for block, channels in enumerate(filters, start=1):
        for number in (1, 2):
            x = keras.layers.Conv2D(channels, kernel_size, padding="same", name=f"conv_{block}_{number}")(x)
            x = keras.layers.PReLU(slope, shared_axes=(1, 2), name=f"prelu_{block}_{number}")(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
    x = keras.layers.Dense(features, name="features")(keras.layers.Flatten(name="flatten")(x))
    return keras.Model(inputs, keras.layers.Dense(classes, use_bias=False, name="logits")(x), name="lenet_plus_plus")


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
