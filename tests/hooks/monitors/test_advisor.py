import json

import keras
import numpy as np
import pytest
from keras import layers

from hookline.hooks.monitors.advisor import (
    Advisor,
    constant_advice,
    direction_advice,
    input_range_advice,
    norm_batch_advice,
)
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.network import Network
from hookline.trainer.run.control import Best, Report

NORM = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(name="norm")])
DIRECTIONS = [
    *(("metric/accuracy", "min", "max"), ("generator/metric/coverage", "min", "max"), ("metric/accuracy", "max", None)),
    *(("generator/loss/total", "max", "min"), ("loss/total", "min", None)),
    ("metric/frechet_distance", "min", None),  # a name that suggests no direction
]


def test_monitor_with_the_wrong_mode_is_reported():
    for monitor, mode, remedy in DIRECTIONS:
        line = direction_advice(monitor, mode)
        assert line is None if remedy is None else line.endswith(f"monitor_mode={remedy}.")


def test_constant_monitor_is_reported():
    for values in ([0.1] * 4, [0.1] * 4 + [0.11], [1.0] * 9, [float("nan")] * 9):
        assert constant_advice("metric/accuracy", values) is None
    for monitor, loss in (("metric/accuracy", "loss/total"), ("generator/metric/coverage", "generator/loss/total")):
        line = constant_advice(monitor, [0.1] * 5)
        assert line.endswith(f"trainer.monitor={loss} trainer.monitor_mode=min.")


def test_advisor_tracks_only_validation_and_keeps_its_history_on_resume(make_run):
    advisor, run = Advisor(), make_run()
    advisor.on_fit_begin(run)
    for step in range(1, 5):
        advisor.on_evaluation_end(run, Report(step, "validation", {"metric/accuracy": 0.1}))
        advisor.on_evaluation_end(run, Report(step, "test", {"metric/accuracy": 0.7}))
    assert advisor.warning({}) is None
    resumed, run.step = Advisor(), 4
    resumed.load_state_dict(json.loads(json.dumps(advisor.state_dict())))
    resumed.on_fit_begin(run)
    resumed.on_evaluation_end(run, Report(5, "validation", {"metric/accuracy": 0.1}))
    assert "0.1000 in each of 5 evaluations" in resumed.warning({})
    run.step = 0
    resumed.on_fit_begin(run)
    assert resumed.warning({}) is None  # a new fit starts over


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"batch_size": 8}, None),
        ({"batch_size": 7}, "7 examples at a time and normalize by a variance that is off by about 58 %"),
        ({"batch_size": 16, "replicas": 4}, "Set +hooks=synchronized_batch_norm or trainer.batch_size=64."),
        ({"batch_size": 16, "replicas": 4, "synchronized": True}, None),
        ({"batch_size": 16, "micro_batches": 4}, "Set trainer.accumulation_steps=1 or trainer.batch_size=64."),
    ],
)
def test_batch_norm_over_few_examples_is_reported(given, seen):
    given = {"replicas": 1, "micro_batches": 1, "synchronized": False, **given}
    line = norm_batch_advice({"model": NORM}, **given)
    assert line is None if seen is None else seen in line
    frozen = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(trainable=False)])
    assert norm_batch_advice({"a": frozen}, **given) is None  # uses no batch statistics
    assert norm_batch_advice({"a": NORM}, NORM.layers, **given) is None  # frozen by a hook


def bare(*before, behind=()):
    return keras.Sequential([keras.Input((4,)), *before, layers.Dense(3, "tanh", name="first"), *behind])


@pytest.mark.parametrize(
    ("model", "largest", "warned"),
    [
        *((bare(), 20.0, True), (bare(), 19.9, False), (bare(layers.Rescaling(1 / 255)), 255.0, False)),
        *((bare(layers.LayerNormalization()), 255.0, False), (NORM, 255.0, False)),
        (bare(keras.Sequential([keras.Input((4,)), layers.Rescaling(1 / 255)])), 255.0, False),
        (bare(layers.Flatten(), behind=[layers.BatchNormalization()]), 255.0, True),
    ],
)
def test_unscaled_inputs_without_normalization_are_reported(model, largest, warned):
    assert (input_range_advice({"model": model}, 0.0, largest) is not None) is warned


def test_advisor_applies_every_rule_to_a_run(make_run):
    arrays = {"inputs": np.full((12, 4), 255.0, np.float32), "targets": np.zeros(12, np.int64)}
    split = Split("train", ArraySource(arrays, lambda batch: batch), np.arange(12))
    networks = {name: Network(name, model, keras.optimizers.Adam()) for name, model in (("a", bare()), ("b", NORM))}
    best, training = Best("metric/accuracy", "min", since=100), TrainingBatches(split, batch_size=4, seed=0)
    run = make_run(networks=networks, training=training, batch_size=4, best=best)
    found = Advisor().advise(run)
    for line, part in zip(found, ("monitor_mode=max", "100 of 100", "batch norm", "inputs reach"), strict=True):
        assert part in line
    run.networks["a"].optimizer.use_ema = True
    assert "use_ema" in Advisor().advise(run)[-1]
    run.trainer.layer_losses, run.config["trainer"] = True, {"accumulation_steps": 2}
    assert "weighs only 1/2" in Advisor().advise(run)[-1]
    run.trainer.layer_losses = False
    run.networks["a"].fixed = run.networks["b"].fixed = True  # not trained
    assert len(Advisor().advise(run)) == 2
