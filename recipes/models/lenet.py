"""LeNet-300-100, LeNet-5 and LeNet++."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from hookline.recipes.models import check_images


def lenet_300_100(
    input_shape: Sequence[int], classes: int, *, activation: str = "relu", dropout: float = 0.0
) -> keras.Model:
    """Return dense layers of 300, 100 and `classes` units, with biases.

    For 28x28x1 images and 10 classes, it has 266,610 parameters (LeCun et al. 1998; Han et al. 2015, table 3).
    """
    inputs = keras.Input(tuple(input_shape), name="image")
    x = keras.layers.Flatten(name="flatten")(inputs)
    for block, units in enumerate((300, 100), start=1):
        x = keras.layers.Dense(units, activation=activation, name=f"dense_{block}")(x)
        if dropout:
            x = keras.layers.Dropout(dropout, name=f"dropout_{block}")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, name="logits")(x), name="lenet_300_100")


def lenet_5(input_shape: Sequence[int], classes: int, *, activation: str = "relu", dropout: float = 0.0) -> keras.Model:
    """Return convolutions of 20 and 50 channels, each with max pooling, then dense layers of 500 and `classes` units.

    For 28x28x1 images and 10 classes, it has 431,080 parameters (Han et al. 2015, table 4). As there, only the dense
    layer of 500 units has an activation.
    """
    shape = check_images("lenet_5", input_shape, 16, "model=lenet_300_100")
    inputs = x = keras.Input(shape, name="image")
    for block, filters in enumerate((20, 50), start=1):
        x = keras.layers.Conv2D(filters, 5, name=f"conv_{block}")(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(500, activation=activation, name="dense_1")(x)
    if dropout:
        x = keras.layers.Dropout(dropout, name="dropout_1")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, name="logits")(x), name="lenet_5")


def lenet_plus_plus(
    input_shape: Sequence[int],
    classes: int,
    *,
    features: int = 2,
    filters: Sequence[int] = (32, 64, 128),
    kernel_size: int = 5,
) -> keras.Model:
    """Return blocks of two convolutions and max pooling, then a dense layer of features and one of logits.

    Convolutions have zero padding and a PReLU with one slope per channel, initially 0.25; pooling is 2x2 (Wen et al.
    2016, table 1). The features have no activation, so that they spread in all directions, and the logits have no bias,
    so that classes differ by the direction of their features.
    """
    shape = check_images("lenet_plus_plus", input_shape, 2 ** len(filters))
    slope = keras.initializers.Constant(0.25)
    inputs = x = keras.Input(shape, name="image")
    for block, channels in enumerate(filters, start=1):
        for number in (1, 2):
            x = keras.layers.Conv2D(channels, kernel_size, padding="same", name=f"conv_{block}_{number}")(x)
            x = keras.layers.PReLU(slope, shared_axes=(1, 2), name=f"prelu_{block}_{number}")(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
    x = keras.layers.Dense(features, name="features")(keras.layers.Flatten(name="flatten")(x))
    return keras.Model(inputs, keras.layers.Dense(classes, use_bias=False, name="logits")(x), name="lenet_plus_plus")
