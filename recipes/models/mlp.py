"""A multilayer perceptron with batch norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hookline.recipes.models.roles import BatchNormFactory, check_activation, check_dropout
from hookline.trainer.errors import UserError


def mlp(
    input_shape: Sequence[int],
    classes: int,
    *,
    units: Sequence[int] = (256, 256),
    activation: str = "hard_tanh",
    dropout: float = 0.0,
    batch_norm_momentum: float = 0.9,
    batch_norm_epsilon: float = 1e-3,
) -> keras.Model:
    """Return blocks of dense, batch norm, activation and dropout, then a dense layer with batch norm for the logits.

    sign(hard_tanh(x)) = sign(x), and the gradient passes where |x| <= 1, as in the sign's straight-through estimator.
    So a hook that binarizes the inputs of the dense layers makes this a binary network, and without the hook it is the
    float baseline. No layer has a bias: batch norm has an offset.

    Args:
        input_shape: of one example, without the batch.
        classes: number of logits.
        units: units of each hidden layer; may be empty.
        activation: name of a Keras activation.
        dropout: in [0, 1): share of the activations that training drops after each block; 0 leaves the layers out.
        batch_norm_momentum: in [0, 1): the share of the old moving statistics that a step keeps.
        batch_norm_epsilon: above 0; added to the variance.

    Returns:
        A functional model: [batch, *input_shape] to logits [batch, classes].

    Raises:
        UserError: an argument out of range.
    """
    given: Any = units  # a config may hold anything
    if not isinstance(given, list | tuple) or not all(type(each) is int and each > 0 for each in given):
        raise UserError(f"Invalid units: {units!r}. Expected a list of whole numbers above 0, such as [256, 256].")
    check_dropout(dropout)
    check_activation(activation)
    batch_norm = BatchNormFactory(momentum=batch_norm_momentum, epsilon=batch_norm_epsilon, scale=True)
    inputs = keras.Input(tuple(input_shape), name="image")
    x = keras.layers.Flatten(name="flatten")(inputs)
    for block, count in enumerate(units, start=1):
        x = keras.layers.Dense(count, use_bias=False, name=f"dense_{block}")(x)
        x = batch_norm(f"batch_norm_{block}")(x)
        x = keras.layers.Activation(activation, name=f"activation_{block}")(x)
        if dropout:
            x = keras.layers.Dropout(dropout, name=f"dropout_{block}")(x)
    x = keras.layers.Dense(classes, use_bias=False, name="logits")(x)
    return keras.Model(inputs, batch_norm("batch_norm_logits")(x), name="mlp")
