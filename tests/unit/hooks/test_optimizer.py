"""What an optimizer does to a variable beside the update: weight decay, moving average."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.options import decays_weight, keeps_averages, moving_average, project_with_average
from tests.support.toy import toy_network

KERNEL, OTHER = "toy/hidden/kernel", "toy/logits/kernel"


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_averages_and_decay_are_found_and_projections_reach_both(wrap):
    plain = toy_network(optimizer=wrap(keras.optimizers.Adam()))
    assert not keeps_averages(plain.optimizer)
    assert moving_average(plain.optimizer, plain.variables[KERNEL]) is None
    assert not decays_weight(plain.optimizer, plain.variables[KERNEL])
    optimizer = keras.optimizers.AdamW(weight_decay=0.1, use_ema=True)
    network = toy_network()
    optimizer.exclude_from_weight_decay(var_list=[network.variables[OTHER]])
    network.optimizer = wrap(optimizer)
    network.optimizer.build(network.model.trainable_variables)
    assert keeps_averages(network.optimizer)
    assert [decays_weight(network.optimizer, network.variables[name]) for name in (KERNEL, OTHER)] == [True, False]
    assert moving_average(network.optimizer, network.variables["toy/norm/moving_mean"]) is None
    averages = [moving_average(network.optimizer, network.variables[name]) for name in (KERNEL, OTHER)]
    for average in averages:
        average.assign(np.full(average.shape, 3))
    before = [network.variables[name].numpy() for name in (KERNEL, OTHER)]
    tf.function(
        lambda: project_with_average(network.optimizer, network.variables[KERNEL], lambda value: -value),
        autograph=False,
    )()
    np.testing.assert_array_equal(network.variables[KERNEL], -before[0])
    np.testing.assert_array_equal(network.variables[OTHER], before[1])
    assert [np.unique(average).tolist() for average in averages] == [[-3], [3]]
