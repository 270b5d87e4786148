"""What layers may assign in a forward pass. That no gradient goes through it, the test of held-out networks holds."""

from __future__ import annotations

import keras
import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.network import Network
from tests.support.toy import CLASSES, FEATURES, toy_loop


def test_layer_that_assigns_what_the_optimizer_trains_is_refused() -> None:
    kernel = keras.layers.SpectralNormalization(keras.layers.Dense(CLASSES, name="dense"))
    network = Network("model", keras.Sequential([keras.Input((FEATURES,)), kernel]), keras.optimizers.SGD(0.1))
    network.optimizer.build(network.model.trainable_variables)
    with pytest.raises(UserError, match="^A layer assigns 'sequential.*dense/kernel' in its forward pass"):
        toy_loop(network=network)
