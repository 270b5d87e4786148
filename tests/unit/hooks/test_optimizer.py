"""What an optimizer does to a variable beside the update: weight decay, moving average."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.optimizer import AVERAGE, decays_weight, keeps_averages, moving_average, project_with_average
from tests.support.toy import toy_network

KERNEL, OTHER = "toy/hidden/kernel", "toy/logits/kernel"


def wrapped(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(optimizer)


@pytest.fixture(params=[lambda optimizer: optimizer, wrapped], ids=["bare", "loss_scaled"])
def wrap(request):
    return request.param


def test_the_average_is_that_of_the_variable(wrap):
    network = toy_network(optimizer=wrap(keras.optimizers.Adam(use_ema=True)))
    for name in (KERNEL, OTHER):
        average = moving_average(network.optimizer, network.variables[name])
        assert average is network.optimizer_slots(name)[AVERAGE]
        assert average.shape == network.variables[name].shape


def test_an_optimizer_keeps_averages_when_it_is_told_to(wrap):
    assert keeps_averages(wrap(keras.optimizers.Adam(use_ema=True)))
    assert not keeps_averages(wrap(keras.optimizers.Adam()))


def test_without_averages_or_for_a_variable_that_is_not_trained_there_is_none(wrap):
    plain = toy_network(optimizer=wrap(keras.optimizers.Adam()))
    assert moving_average(plain.optimizer, plain.variables[KERNEL]) is None
    averaging = toy_network(optimizer=wrap(keras.optimizers.Adam(use_ema=True)))
    assert moving_average(averaging.optimizer, averaging.variables["toy/norm/moving_mean"]) is None


def test_weight_decay_counts_only_for_what_it_is_applied_to(wrap):
    assert not decays_weight(wrap(keras.optimizers.Adam()), toy_network().variables[KERNEL])
    network = toy_network()
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_list=[network.variables[OTHER]])
    optimizer.build(network.model.trainable_variables)
    assert decays_weight(wrap(optimizer), network.variables[KERNEL])
    assert not decays_weight(wrap(optimizer), network.variables[OTHER])


@pytest.mark.parametrize("use_ema", [False, True])
def test_a_projection_reaches_the_variable_and_its_average_and_nothing_else(wrap, use_ema: bool):
    network = toy_network(optimizer=wrap(keras.optimizers.Adam(use_ema=use_ema)))
    variable, other = network.variables[KERNEL], network.variables[OTHER]
    if use_ema:
        for name in (KERNEL, OTHER):
            moving_average(network.optimizer, network.variables[name]).assign(np.full(network.variables[name].shape, 3))
    start, untouched = variable.numpy(), other.numpy()
    seen: list[tuple[int, ...]] = []

    @tf.function(autograph=False)
    def project() -> None:
        def negate(value: tf.Tensor) -> tf.Tensor:
            seen.append(tuple(value.shape))
            return -value

        project_with_average(network.optimizer, variable, negate)

    project()
    np.testing.assert_array_equal(variable.numpy(), -start)
    np.testing.assert_array_equal(other.numpy(), untouched)
    assert seen == [(6, 8)] * (1 + use_ema)
    if use_ema:
        assert (moving_average(network.optimizer, variable).numpy() == -3).all()
        assert (moving_average(network.optimizer, other).numpy() == 3).all()
