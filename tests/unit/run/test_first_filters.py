"""Pictures of the first layer: the weights that are used, in the places of the pixels."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from trainer.network import Network
from trainer.run.first_filters import GAP, MOST_FILTERS, first_filters, first_kernel


def network_of(*layers, shape=(6, 5, 1)) -> Network:
    keras.utils.clear_session()
    inputs = outputs = keras.Input(shape)
    for layer in layers:
        outputs = layer(outputs)
    return Network("model", keras.Model(inputs, outputs), keras.optimizers.SGD())


def weights_of(network: Network) -> dict[str, np.ndarray]:
    return {name: each.value.numpy() for name, each in network.weights.items()}


@pytest.mark.parametrize("channels", [1, 3])
def test_a_convolution_shows_its_filters_in_order(channels: int) -> None:
    network = network_of(keras.layers.Conv2D(5, 3, name="conv"), shape=(8, 8, channels))
    weights = weights_of(network)
    ((name, sheet),) = first_filters(network, weights).items()
    kernel = weights["conv/kernel"]
    times = 24 // 3
    assert name == "filters/conv"
    assert sheet.shape == (2 * (24 + GAP) + GAP, 3 * (24 + GAP) + GAP, channels)
    largest = np.abs(kernel).max()
    for index in range(5):
        top, left = GAP + index // 3 * (24 + GAP), GAP + index % 3 * (24 + GAP)
        tile = sheet[top : top + 24 : times, left : left + 24 : times]
        np.testing.assert_allclose((tile - 0.5) * 2 * largest, kernel[..., index], atol=1e-6)
    assert (sheet[-24:, -24:] == 1.0).all()  # no sixth filter


def test_a_dense_layer_shows_each_unit_as_an_image_and_at_most_64() -> None:
    network = network_of(keras.layers.Flatten(), keras.layers.Dense(70, name="dense"))
    weights = weights_of(network)
    weights["dense/kernel"] = np.zeros_like(weights["dense/kernel"])
    weights["dense/kernel"][7, 1] = -2.0  # unit 1 looks at row 1, column 2
    ((name, sheet),) = first_filters(network, weights).items()
    assert name == "filters/dense"
    times, side = 5, 5 * 5 + GAP
    assert sheet.shape == (8 * (6 * times + GAP) + GAP, 8 * side + GAP, 1)
    assert MOST_FILTERS == 64
    dark = np.argwhere(sheet[..., 0] == 0.0)
    assert dark.min(0).tolist() == [GAP + 1 * times, GAP + side + 2 * times]
    assert len(dark) == times**2


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ([keras.layers.Dense(3)], (4,)),
        ([keras.layers.Conv2D(4, 1)], (6, 6, 1)),
        ([keras.layers.Conv2D(4, 3)], (6, 6, 2)),
        ([keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)], (6, 6, 3)),
        ([keras.layers.Flatten()], (6, 6, 3)),
    ],
    ids=["no image", "one pixel", "two channels", "no pixels", "no kernel"],
)
def test_other_first_layers_have_no_picture(layers, shape) -> None:
    network = network_of(*layers, shape=shape)
    assert first_kernel(network) is None
    assert first_filters(network, weights_of(network)) == {}


def test_weights_that_are_not_finite_have_no_picture() -> None:
    network = network_of(keras.layers.Conv2D(5, 3, name="conv"))
    weights = weights_of(network)
    weights["conv/kernel"][0, 0, 0, 0] = np.nan
    assert first_filters(network, weights) == {}
