"""The small convolutional network of Larq's MNIST tutorial."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from hookline.recipes.models import batch_norm_factory, check_activation, check_images


def larq_tutorial_cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    activation: str = "hard_tanh",
    batch_norm_momentum: float = 0.9,
    batch_norm_epsilon: float = 1e-3,
    logits_scale: bool = True,
) -> keras.Model:
    """Return convolutions of 32, 64 and 64 channels, then dense layers of 64 units and of the classes.

    For 28x28x1 images and 10 classes that is 93,088 kernel weights and 234 channels of batch norm; with one bit per
    weight and two floats per channel, 13.19 KiB. In the tutorial the quantizers are part of the layers; here a hook
    adds them, and the network without the hook is the float baseline (see `mlp`).
    """
    shape = check_images("larq_tutorial_cnn", input_shape, 18)  # three convolutions and two poolings leave one pixel
    check_activation(activation)
    batch_norm = batch_norm_factory(batch_norm_momentum, batch_norm_epsilon, scale=False)
    inputs = x = keras.Input(shape, name="image")
    for block, (filters, pools) in enumerate([(32, True), (64, True), (64, False)], start=1):
        x = keras.layers.Conv2D(filters, 3, use_bias=False, name=f"conv_{block}")(x)
        if pools:  # before batch norm: pooling signs would give +1 nearly always
            x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
        x = batch_norm(name=f"batch_norm_{block}")(x)
        x = keras.layers.Activation(activation, name=f"activation_{block}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(64, use_bias=False, name="dense_1")(x)
    x = batch_norm(name="batch_norm_4")(x)
    x = keras.layers.Activation(activation, name="activation_4")(x)
    x = keras.layers.Dense(classes, use_bias=False, name="logits")(x)
    x = batch_norm(scale=logits_scale, name="batch_norm_logits")(x)
    return keras.Model(inputs, x, name="larq_tutorial_cnn")
