"""The small convolutional network of Larq's MNIST tutorial."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from hookline.recipes.models.roles import BatchNormFactory, check_activation
from hookline.trainer.errors import UserError

SMALLEST = 18  # pixels a side: three 3x3 convolutions and two poolings leave one


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

    Args:
        input_shape: of one image: height, width, channels; 18 pixels a side at least.
        classes: number of logits.
        activation: name of a Keras activation.
        batch_norm_momentum: in [0, 1): the share of the old moving statistics that a step keeps.
        batch_norm_epsilon: above 0; added to the variance.
        logits_scale: whether the last batch norm learns a scale beside its offset; the others do not. The tutorial's
            does not: its logits keep unit variance, so the cross-entropy stays high and the binary weights of the last
            layer never settle. A folded batch norm is two floats per channel either way.

    Returns:
        A functional model: [batch, *input_shape] to logits [batch, classes].

    Raises:
        UserError: images of another rank or too small, or an argument out of range.
    """
    shape = tuple(input_shape)
    if len(shape) != 3 or min(shape[:2]) < SMALLEST:
        raise UserError(
            f"larq_tutorial_cnn got inputs of shape {shape}. Expected images [height, width, channels] of at least "
            f"{SMALLEST} pixels a side. Use another model, such as model=mlp, or larger images."
        )
    check_activation(activation)
    batch_norm = BatchNormFactory(momentum=batch_norm_momentum, epsilon=batch_norm_epsilon, scale=False)
    inputs = x = keras.Input(shape, name="image")
    for block, (filters, pools) in enumerate([(32, True), (64, True), (64, False)], start=1):
        x = keras.layers.Conv2D(filters, 3, use_bias=False, name=f"conv_{block}")(x)
        if pools:  # before batch norm: pooling signs would give +1 nearly always
            x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
        x = batch_norm(f"batch_norm_{block}")(x)
        x = keras.layers.Activation(activation, name=f"activation_{block}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(64, use_bias=False, name="dense_1")(x)
    x = batch_norm("batch_norm_4")(x)
    x = keras.layers.Activation(activation, name="activation_4")(x)
    x = keras.layers.Dense(classes, use_bias=False, name="logits")(x)
    scaled = BatchNormFactory(momentum=batch_norm_momentum, epsilon=batch_norm_epsilon, scale=logits_scale)
    return keras.Model(inputs, scaled("batch_norm_logits")(x), name="larq_tutorial_cnn")
