"""A small convolutional network with two heads on one body: one classifies, the other predicts the domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hookline.recipes.models.roles import check_activation
from hookline.trainer.errors import UserError


def two_headed_cnn(
    input_shape: Sequence[int],
    classes: int,
    *,
    filters: Sequence[int] = (16, 32),
    kernel_size: int = 3,
    class_units: Sequence[int] = (64,),
    domain_units: Sequence[int] = (64,),
    activation: str = "relu",
) -> keras.Model:
    """Return blocks of convolution, activation and pooling 2x2, with two dense heads on top.

    The body and the heads are those of Ganin et al. 2016, figure 4 a, but smaller: the domain is predicted from the
    maps of the last block, not from a dense layer above them. The domain's head starts with an identity layer, the
    "domain_entrance": when a hook changes its gradient, the whole body gets the change and the head does not.

    There is no batch norm: its statistics would leak the appearance of the target's images into a network that is
    trained without adaptation, which would then be no fair baseline.

    Args:
        input_shape: of one image: height, width, channels. Each block halves height and width; one pixel must be left.
        classes: number of logits.
        filters: channels of each block.
        kernel_size: of the convolutions, in pixels a side.
        class_units: units of the class head's hidden layers; may be empty.
        domain_units: units of the domain head's; may be empty.
        activation: name of a Keras activation.

    Returns:
        A functional model: [batch, *input_shape] to logits [batch, classes] and [batch, 1]; a domain's logit is above
        0 for the target.

    Raises:
        UserError: images of another rank or too small, or an argument out of range.
    """
    _check_sizes("filters", filters, 1)
    _check_sizes("class_units", class_units, 0)
    _check_sizes("domain_units", domain_units, 0)
    if type(kernel_size) is not int or kernel_size < 1:
        raise UserError(f"Invalid kernel_size: {kernel_size!r}. Expected a whole number above 0.")
    check_activation(activation)
    shape, smallest = tuple(input_shape), 2 ** len(filters)
    if len(shape) != 3 or min(shape[:2]) < smallest:
        raise UserError(
            f"two_headed_cnn got inputs of shape {shape}. Expected images [height, width, channels] of at least "
            f"{smallest} pixels a side for {len(filters)} blocks. Use fewer filters, or larger images."
        )
    inputs = x = keras.Input(shape, name="image")
    for block, count in enumerate(filters, start=1):
        x = keras.layers.Conv2D(count, kernel_size, padding="same", activation=activation, name=f"conv_{block}")(x)
        x = keras.layers.MaxPooling2D(2, name=f"pool_{block}")(x)
    features = keras.layers.Flatten(name="features")(x)
    logits = _head(features, "class", class_units, classes, activation)
    entrance = keras.layers.Identity(name="domain_entrance")(features)
    domain = _head(entrance, "domain", domain_units, 1, activation)
    return keras.Model(inputs, [logits, domain], name="two_headed_cnn")


def _head(features: Any, name: str, units: Sequence[int], outputs: int, activation: str) -> Any:
    x = features
    for number, count in enumerate(units, start=1):
        x = keras.layers.Dense(count, activation=activation, name=f"{name}_dense_{number}")(x)
    return keras.layers.Dense(outputs, name=f"{name}_logits")(x)


def _check_sizes(name: str, value: Any, least: int) -> None:
    listed = isinstance(value, list | tuple) and len(value) >= least
    if not listed or not all(type(count) is int and count > 0 for count in value):
        some = "a list" if least else "a list, perhaps empty,"
        raise UserError(f"Invalid {name}: {value!r}. Expected {some} of whole numbers above 0, such as [16, 32].")
