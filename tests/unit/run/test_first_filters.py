"""Pictures of the first layer: the weights that are used, in the places of the pixels."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

from hookline.trainer.network import Network
from hookline.trainer.run.views import GAP, first_filters, first_kernel


def network_of(*stack, shape=(6, 5, 1)):
    keras.utils.clear_session()
    network = Network("model", keras.Sequential([keras.Input(shape), *stack]), keras.optimizers.SGD())
    return network, {name: each.value.numpy() for name, each in network.weights.items()}


@pytest.mark.parametrize("channels", [1, 3])
def test_a_convolution_shows_its_filters_in_order(channels: int) -> None:
    network, weights = network_of(layers.Conv2D(5, 3, name="conv"), shape=(8, 8, channels))
    ((name, sheet),) = first_filters(network, weights).items()
    kernel = next(value for value in weights.values() if value.ndim == 4)
    assert name.endswith("conv")
    assert sheet.shape == (2 * (24 + GAP) + GAP, 3 * (24 + GAP) + GAP, channels)
    for index in range(5):
        top, left = GAP + index // 3 * (24 + GAP), GAP + index % 3 * (24 + GAP)
        tile = sheet[top : top + 24 : 8, left : left + 24 : 8]
        np.testing.assert_allclose((tile - 0.5) * 2 * np.abs(kernel).max(), kernel[..., index], atol=1e-6)
    assert (sheet[-24:, -24:] == 1.0).all()  # no sixth filter
    kernel[0, 0, 0, 0] = np.nan
    assert first_filters(network, weights) == {}


def test_other_first_layers_have_no_picture() -> None:
    for stack, shape in (
        ([layers.Dense(3)], (4,)),
        ([layers.Conv2D(4, 1)], (6, 6, 1)),
        ([layers.Conv2D(4, 3)], (6, 6, 2)),
        ([layers.GlobalAveragePooling2D(), layers.Dense(4)], (6, 6, 3)),
    ):
        network, weights = network_of(*stack, shape=shape)
        assert (first_kernel(network), first_filters(network, weights)) == (None, {})
