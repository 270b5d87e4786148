"""A small convolutional network with two heads on one body: one classifies, the other predicts the domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hookline.recipes import check_whole
from hookline.recipes.models import check_activation, check_images, check_sizes


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
    """
    check_sizes("filters", filters, least=1)
    check_sizes("class_units", class_units)
    check_sizes("domain_units", domain_units)
    check_whole("kernel_size", kernel_size, 1)
    check_activation(activation)
    shape = check_images("two_headed_cnn", input_shape, 2 ** len(filters), "fewer filters")
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
