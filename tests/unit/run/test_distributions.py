"""Arrays to make histograms of: latent weights, and beside them those that are used where they differ."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from hookline.trainer.network import Network
from hookline.trainer.run.views import weight_distributions


def test_latent_weights_stand_beside_used_ones_where_they_differ() -> None:
    inputs = keras.Input((6, 5, 1))
    outputs = layers.Dense(2, name="d")(layers.Flatten()(layers.Conv2D(2, 3, name="conv")(inputs)))
    network = Network("model", keras.Model(inputs, outputs), keras.optimizers.SGD())
    used, latent = ({name: each.value.numpy() for name, each in network.weights.items()} for _ in range(2))
    used["conv/kernel"] = np.sign(used["conv/kernel"])
    found = weight_distributions({"model": network}, {"model": used})
    assert list(found) == ["weights/conv/kernel/latent", "weights/conv/kernel/forward", "weights/d/kernel/latent"]
    np.testing.assert_array_equal(found["weights/conv/kernel/forward"], used["conv/kernel"])
    np.testing.assert_array_equal(found["weights/conv/kernel/latent"], latent["conv/kernel"])
    several = weight_distributions({"a": network, "b": network}, dict.fromkeys("ab", latent))
    assert list(several) == [
        f"{name}/weights/{kernel}/latent" for name in "ab" for kernel in ("conv/kernel", "d/kernel")
    ]
