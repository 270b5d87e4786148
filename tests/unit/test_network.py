"""Names of variables: unique, and the same in every process."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.support.toy import toy_network
from trainer.network import Network


class Repeated(keras.Model):
    """Hold two layers of one name."""

    def __init__(self) -> None:
        super().__init__(name="repeated")
        self.first = keras.layers.Dense(3, name="dense")
        self.second = keras.layers.Dense(3, name="dense")

    def call(self, inputs):
        return self.second(self.first(inputs))


def test_repeated_paths_are_told_apart_in_order() -> None:
    model = Repeated()
    model(np.zeros((1, 3), np.float32))
    names = Network("model", model, keras.optimizers.SGD()).variables
    assert list(names) == [
        "repeated/dense/kernel",
        "repeated/dense/bias",
        "repeated/dense/kernel_1",
        "repeated/dense/bias_1",
    ]
    assert names["repeated/dense/kernel_1"] is model.second.kernel


def test_seed_state_is_named_after_its_layer_not_after_the_history_of_the_process() -> None:
    first, second = toy_network(dropout=0.5), toy_network(dropout=0.5)
    assert list(first.variables) == list(second.variables)
    assert "dropout/seed_generator_state" in first.variables


def test_roles_split_the_variables() -> None:
    network = toy_network(dropout=0.5)
    assert set(network.trainable_variables) | set(network.state_variables) == set(network.variables)
    assert not set(network.trainable_variables) & set(network.state_variables)
    assert set(network.variables) - set(network.weights) == {"dropout/seed_generator_state"}
    assert {"toy/norm/moving_mean", "toy/norm/moving_variance"} <= set(network.weights)


def test_optimizer_variables_carry_the_names_of_what_they_belong_to() -> None:
    network = toy_network(optimizer=keras.optimizers.Adam())
    assert {"iteration", "learning_rate", "toy_hidden_kernel_velocity"} <= set(network.optimizer_variables)


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (keras.optimizers.SGD(0.1), set()),
        (keras.optimizers.SGD(0.1, momentum=0.9), {"momentums"}),
        (keras.optimizers.Adam(use_ema=True), {"_momentums", "_velocities", "_model_variables_moving_average"}),
        (keras.optimizers.Adagrad(), {"_accumulators"}),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.Lion()), {"_momentums"}),
    ],
)
def test_slots_of_a_variable_are_found_by_the_optimizers_attribute(optimizer, slots) -> None:
    network = toy_network(optimizer=optimizer)
    found = network.optimizer_slots("toy/hidden/kernel")
    assert set(found) == slots
    for slot in found.values():
        assert slot.shape == (6, 8)
        assert "hidden_kernel" in slot.path
