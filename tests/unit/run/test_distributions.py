"""Arrays to make histograms of: latent weights, and beside them those that are used where they differ."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from trainer.network import Network
from trainer.run.distributions import weight_distributions


def network_of(*layers) -> Network:
    keras.utils.clear_session()
    inputs = outputs = keras.Input((6, 5, 1))
    for layer in layers:
        outputs = layer(outputs)
    return Network("model", keras.Model(inputs, outputs), keras.optimizers.SGD())


def weights_of(network: Network) -> dict[str, np.ndarray]:
    return {name: each.value.numpy() for name, each in network.weights.items()}


def test_latent_weights_stand_beside_those_that_are_used_where_they_differ() -> None:
    network = network_of(
        keras.layers.Conv2D(2, 3, name="conv"), keras.layers.Flatten(), keras.layers.Dense(2, name="d")
    )
    used = weights_of(network)
    used["conv/kernel"] = np.sign(used["conv/kernel"])
    found = weight_distributions({"model": network}, {"model": used})
    assert list(found) == ["weights/conv/kernel/latent", "weights/conv/kernel/forward", "weights/d/kernel/latent"]
    np.testing.assert_array_equal(found["weights/conv/kernel/forward"], used["conv/kernel"])
    np.testing.assert_array_equal(found["weights/conv/kernel/latent"], network.variables["conv/kernel"].value.numpy())


def test_of_several_networks_the_name_stands_before() -> None:
    network = network_of(keras.layers.Flatten(), keras.layers.Dense(2, name="d"))
    found = weight_distributions({"a": network, "b": network}, dict.fromkeys("ab", weights_of(network)))
    assert list(found) == ["a/weights/d/kernel/latent", "b/weights/d/kernel/latent"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_kernels_that_are_not_finite_are_equal_where_they_are_the_same(value) -> None:
    network = network_of(keras.layers.Flatten(), keras.layers.Dense(2, name="d"))
    network.variables["d/kernel"].assign(np.full((30, 2), value))
    assert list(weight_distributions({"a": network}, {"a": weights_of(network)})) == ["weights/d/kernel/latent"]
    other = {"a": weights_of(network) | {"d/kernel": np.zeros((30, 2))}}
    assert "weights/d/kernel/forward" in weight_distributions({"a": network}, other)
