"""A multilayer perceptron with batch norm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import keras


def mlp(
    input_shape: Sequence[int],
    classes: int,
    *,
    units: Sequence[int] = (256, 256),
    activation: str = "hard_tanh",
    dropout: float = 0.0,
    batch_norm_outputs: bool = True,
    batch_norm_momentum: float = 0.9,
    batch_norm_epsilon: float = 1e-3,
) -> keras.Model:
    """Return blocks of dense, batch norm, activation and dropout, then a dense layer with batch norm for the logits.

    Without `batch_norm_outputs`, the last layer has a bias instead of batch norm, as regression needs.

    Since sign(hard_tanh(x)) = sign(x), and the gradient passes where |x| <= 1 as in the sign's straight-through
    estimator, a hook that binarizes the inputs of the dense layers turns this into a binary network; without the hook
    it is the float baseline. Layers before batch norm have no bias.
    """
    batch_norm = partial(keras.layers.BatchNormalization, momentum=batch_norm_momentum, epsilon=batch_norm_epsilon)
    inputs = keras.Input(tuple(input_shape), name="image")
    x = keras.layers.Flatten(name="flatten")(inputs)
    for block, count in enumerate(units, start=1):
        x = keras.layers.Dense(count, use_bias=False, name=f"dense_{block}")(x)
        x = batch_norm(name=f"batch_norm_{block}")(x)
        x = keras.layers.Activation(activation, name=f"activation_{block}")(x)
        if dropout:
            x = keras.layers.Dropout(dropout, name=f"dropout_{block}")(x)
    x = keras.layers.Dense(classes, use_bias=not batch_norm_outputs, name="logits")(x)
    outputs = batch_norm(name="batch_norm_logits")(x) if batch_norm_outputs else x
    return keras.Model(inputs, outputs, name="mlp")
