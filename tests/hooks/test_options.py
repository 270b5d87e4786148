"""Options: what is accepted and what is refused; epochs as steps; the averages of optimizers."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline import hooks
from hookline.hooks.ema import Ema
from hookline.hooks.options import epoch_start, moving_average, project_with_average
from hookline.hooks.prune import Prune
from tests.support.refusals import assert_refused
from tests.support.toy import toy_network


def test_constructor_accepts_compatible_types_and_refuses_others():
    given = {"layers": ("conv", "dense"), "initial_sparsity": np.float64(0.5), "structure": {"block": (4, 4)}}
    assert Prune(**given).settings.initial_sparsity == 0.5
    for make, given in (
        (lambda: Prune(layers=toy_network().model.layers), r"layers=\["),
        (lambda: Ema(warm_up="no"), "warm_up='no'"),
    ):
        assert_refused(f"^{given}.* received for .* Expected ", make)


WRONG = {
    "bernoulli_attention": {"mode": "x", "eval_mode": "x", "join": "add", "branch_input": "x", "temperature": 0},
    "bop": {"threshold": 0.0, "gamma": 1.5, "final_gamma": -1.0},
    "bnn_rounding": {"input_quantizer": "magnitude_aware_sign", "clip": 0},
    "center_loss": {"weight": -1.0, "alpha": 1.5, "begin_epoch": -0.5, "warm_up_epochs": -1},
    "checkpoint": {"every_epochs": 0, "every_seconds": -1, "keep_last": 0},
    "clip_gradients": {"by": "nrom", "limit": math.inf},
    "early_stopping": {"patience": 0, "min_delta": -1},
    "ema": {"decay": 1.0, "begin_epoch": -1},
    "freeze_layers": {"stop": "weight", "batch_norm": "on", "begin_epoch": -1, "end_epoch": 0},
    "frozen_mask": {"masks": "files", "freeze": "all", "fraction": 1.5, "begin_epoch": -1, "path": "x"},
    "incremental_quantization": {
        "shares": [0.5, 0.9],
        "begin_epoch": -1,
        "step_epochs": 0,
        "bits": 1,
        "criterion": "x",
    },
    "nan_guard": {"policy": "skp", "at_most": 0, "rate_factor": 1.5},
    "pictures": {"every": -1},
    "progress": {"mode": "lines", "every_seconds": 0, "lines": 0},
    "quantization_aware_training": {"weight_bits": 9, "activation_bits": 3, "range_decay": 1.0, "ranges": "x"},
    "sam": {"radius": 0},
    "split_guard": {"on_leak": "halt", "near": 1.0},
    "tensorboard": {"pictures_every": -1, "histograms_every": 0.5, "profile_steps": -1},
    "weight_clustering": {"clusters": 1, "init": "random", "centroid_rate": -1},
}


def test_invalid_options_are_refused_by_the_constructor():
    for name, wrong in WRONG.items():
        given = {"layers": "*"} if name == "freeze_layers" else {}
        for option, value in wrong.items():
            assert_refused(option, hooks.load(name), **{**given, option: value})


def test_epoch_starts_at_its_first_whole_step():
    for epoch, per_epoch, step in ((2, 19.64, 40), (1, 7.5, 8), (0, 7.5, 0), (0.1 * 3, 100, 30)):  # 0.1 * 3 > 0.3
        assert epoch_start(epoch, per_epoch) == step


KERNEL, OTHER = "toy/hidden/kernel", "toy/logits/kernel"


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_projection_reaches_a_weight_and_its_moving_average(wrap):
    plain = toy_network(optimizer=wrap(keras.optimizers.Adam()))
    assert moving_average(plain, KERNEL) is None
    optimizer = keras.optimizers.AdamW(weight_decay=0.1, use_ema=True)
    network = toy_network()
    network.optimizer = wrap(optimizer)
    network.optimizer.build(network.model.trainable_variables)
    assert moving_average(network, "toy/norm/moving_mean") is None
    averages = [moving_average(network, name) for name in (KERNEL, OTHER)]
    for average in averages:
        average.assign(np.full(average.shape, 3))
    before = [network.variables[name].numpy() for name in (KERNEL, OTHER)]
    tf.function(lambda: project_with_average(network, KERNEL, lambda value: -value), autograph=False)()
    np.testing.assert_array_equal(network.variables[KERNEL], -before[0])
    np.testing.assert_array_equal(network.variables[OTHER], before[1])
    assert [np.unique(average).tolist() for average in averages] == [[-3], [3]]
