"""LeNet-5 as Caffe has it, the convolutional network of the pruning literature."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from recipes.models.blocks import check_activation, check_dropout
from trainer.errors import UserError

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
