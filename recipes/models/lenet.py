"""LeNet in three forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hookline.recipes.models.roles import check_activation, check_dropout
from hookline.trainer.errors import UserError


def lenet_300_100(
    input_shape: Sequence[int], classes: int, *, activation: str = "relu", dropout: float = 0.0
) -> keras.Model:
    """Return dense layers of 300 units, 100 units and the classes, with biases.

    For 28x28x1 images and 10 classes that is 266,610 weights (LeCun et al. 1998; Han et al. 2015, table 3).

    Args:
        input_shape: of one example, without the batch.
        classes: number of logits.
        activation: name of a Keras activation.
        dropout: in [0, 1): share of the hidden activations that training drops; 0 leaves the layers out.

    Returns:
        A functional model: [batch, *input_shape] to logits [batch, classes].

    Raises:
        UserError: an argument out of range.
    """
    check_activation(activation)
    check_dropout(dropout)
    inputs = keras.Input(tuple(input_shape), name="image")
    x = keras.layers.Flatten(name="flatten")(inputs)
    for block, units in enumerate((300, 100), start=1):
        x = keras.layers.Dense(units, activation=activation, name=f"dense_{block}")(x)
        if dropout:
            x = keras.layers.Dropout(dropout, name=f"dropout_{block}")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, name="logits")(x), name="lenet_300_100")


SMALLEST = 16  # pixels a side: two 5x5 convolutions and two poolings leave one


def lenet_5(input_shape: Sequence[int], classes: int, *, activation: str = "relu", dropout: float = 0.0) -> keras.Model:
    """Return convolutions of 20 and 50 channels, each pooled, then dense layers of 500 units and of the classes.

    For 28x28x1 images and 10 classes that is 431,080 weights (Han et al. 2015, table 4). As there, only the dense
    layer of 500 units has an activation.

    Args:
        input_shape: of one image: height, width, channels; 16 pixels a side at least.
        classes: number of logits.
        activation: name of a Keras activation.
        dropout: in [0, 1): share of the 500 activations that training drops; 0 leaves the layer out.

    Returns:
        A functional model: [batch, *input_shape] to logits [batch, classes].

    Raises:
        UserError: images of another rank or too small, or an argument out of range.
    """
    shape = tuple(input_shape)
    if len(shape) != 3 or min(shape[:2]) < SMALLEST:
        raise UserError(
            f"lenet_5 got inputs of shape {shape}. Expected images [height, width, channels] of at least {SMALLEST} "
            "pixels a side. Use another model, such as model=lenet_300_100, or larger images."
        )
    check_activation(activation)
    check_dropout(dropout)
    inputs = x = keras.Input(shape, name="image")
    for block, filters in enumerate((20, 50), start=1):
        x = keras.layers.Conv2D(filters, 5, name=f"conv_{block}")(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(500, activation=activation, name="dense_1")(x)
    if dropout:
        x = keras.layers.Dropout(dropout, name="dropout_1")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, name="logits")(x), name="lenet_5")


SMALLEST_LENET_PLUS_PLUS = 8  # pixels a side: three poolings leave one


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
    if len(shape) != 3 or min(shape[:2]) < SMALLEST_LENET_PLUS_PLUS:
        raise UserError(
            f"lenet_plus_plus got inputs of shape {shape}. Expected images [height, width, channels] of at least "
            f"{SMALLEST_LENET_PLUS_PLUS} pixels a side. Use another model, such as model=mlp, or larger images."
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
