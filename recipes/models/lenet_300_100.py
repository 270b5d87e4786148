"""LeNet-300-100, the dense network of the pruning literature."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from recipes.models.blocks import check_activation, check_dropout


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
