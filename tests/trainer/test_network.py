"""Networks: the names of their variables, and their learning rates."""

import keras
import numpy as np
import pytest

from hookline.trainer.network import Network
from hookline.trainer.rate_schedules import ScaledRate
from tests.support.toy import toy_network


class Repeated(keras.Model):
    def __init__(self):
        super().__init__(name="repeated")
        self.first = keras.layers.Dense(3, name="dense")
        self.second = keras.layers.Dense(3, name="dense")

    def call(self, inputs):
        return self.second(self.first(inputs))


def test_repeated_paths_are_numbered_in_order():
    model = Repeated()
    model(np.zeros((1, 3), np.float32))
    names = Network("model", model, keras.optimizers.SGD()).variables
    assert [name.removeprefix("repeated/dense/") for name in names] == ["kernel", "bias", "kernel_1", "bias_1"]
    assert names["repeated/dense/kernel_1"] is model.second.kernel


def test_rate_lowered_twice_is_multiplied_by_both_factors():
    for rate in (0.8, ScaledRate(keras.optimizers.schedules.ExponentialDecay(0.8, 10, 1.0))):
        network = toy_network(optimizer=keras.optimizers.SGD(rate))
        for factor in (0.5, 0.25):
            network.lower_rate(factor)
        assert float(network.optimizer.learning_rate) == pytest.approx(0.1)
