"""The networks of `what=training` that `recipes/models` does not hold, or that another Keras needs.

The functions are given the module: Keras 3, or the Keras 2 that other libraries still stand on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def four_convolutions(input_shape: Sequence[int], classes: int) -> Any:
    """Return two pooled blocks of two 3x3 convolutions with batch norm, 32 and 64 channels, and a dense layer."""
    import keras

    inputs = x = keras.Input(tuple(input_shape), name="image")
    for block, filters in enumerate((32, 64), start=1):
        for part in "ab":
            name = f"block_{block}{part}"
            x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"{name}_conv")(x)
            x = keras.layers.BatchNormalization(name=f"{name}_batch_norm")(x)
            x = keras.layers.Activation("relu", name=f"{name}_activation")(x)
        x = keras.layers.MaxPooling2D(2, name=f"block_{block}_pool")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, name="logits")(x), name="four_convolutions")


def legacy_lenet_5(keras: Any, classes: int) -> Any:
    """Return what `hookline.recipes.models.lenet` is, for 28x28x1 images, in Keras 2."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Conv2D(20, 5, input_shape=(28, 28, 1)),
            layers.MaxPooling2D(2),
            layers.Conv2D(50, 5),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(500, activation="relu"),
            layers.Dense(classes),
        ]
    )


def legacy_larq_cnn(keras: Any, larq: Any, classes: int) -> Any:
    """Return the network of Larq's MNIST tutorial, without its softmax: the loss takes logits."""
    binary = {"kernel_quantizer": "ste_sign", "kernel_constraint": "weight_clip", "use_bias": False}
    inner = {"input_quantizer": "ste_sign", **binary}
    layers = keras.layers
    return keras.Sequential(
        [
            larq.layers.QuantConv2D(32, 3, input_shape=(28, 28, 1), **binary),
            layers.MaxPooling2D(2),
            layers.BatchNormalization(scale=False),
            larq.layers.QuantConv2D(64, 3, **inner),
            layers.MaxPooling2D(2),
            layers.BatchNormalization(scale=False),
            larq.layers.QuantConv2D(64, 3, **inner),
            layers.BatchNormalization(scale=False),
            layers.Flatten(),
            larq.layers.QuantDense(64, **inner),
            layers.BatchNormalization(scale=False),
            larq.layers.QuantDense(classes, **inner),
            layers.BatchNormalization(scale=False),
        ]
    )
