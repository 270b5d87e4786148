from __future__ import annotations

import json
from collections.abc import Sequence

import keras
import numpy as np
import pytest
from keras import layers

from hooks.advice.input_range import input_range_advice
from hooks.advice.monitor import constant_advice, direction_advice, late_advice, loss_monitor
from hooks.advice.norm_batches import norm_batch_advice
from hooks.monitors.advisor import Advisor
from trainer.input.batches import TrainingBatches
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.network import Network
from trainer.run.control import Best, Report


@pytest.mark.parametrize(
    ("monitor", "mode", "remedy"),
    [
        ("metric/accuracy", "min", "max"),
        ("metric/source_accuracy", "min", "max"),
        ("metric/recall@1", "min", "max"),
        ("generator/metric/coverage", "min", "max"),
        ("loss/cross_entropy", "max", "min"),
        ("generator/loss/total", "max", "min"),
        ("metric/accuracy", "max", None),
        ("loss/total", "min", None),
        ("metric/frechet_distance", "min", None),
        ("metric/frechet_distance", "max", None),  # a name that tells nothing
        ("loss/accuracy_gap", "min", None),
    ],
)
def test_a_monitor_the_wrong_way_round_is_pointed_at(monitor, mode, remedy):
    line = direction_advice(monitor, mode)
    assert (line is None) if remedy is None else (line is not None and line.endswith(f"monitor_mode={remedy}."))


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ([0.1] * 5, True),
        ([0.1] * 4, False),
        ([0.1, 0.1, 0.1, 0.1, 0.11], False),
        ([1.0] * 9, False),  # there is nothing left to reach
        ([float("nan")] * 9, False),  # another hook's matter
    ],
)
def test_a_monitor_that_never_changes_is_pointed_at(values, warned):
    assert (constant_advice("metric/accuracy", values) is not None) is warned


@pytest.mark.parametrize(
    ("monitor", "settings"),
    [
        ("metric/accuracy", "trainer.monitor=loss/total trainer.monitor_mode=min"),
        ("generator/metric/coverage", "trainer.monitor=generator/loss/total trainer.monitor_mode=min"),
        ("metric/model/metric_gap", "trainer.monitor=loss/total trainer.monitor_mode=min"),
        ("generator/loss/total", ""),
    ],
)
def test_the_loss_of_the_same_objective_is_proposed_with_its_direction(monitor, settings):
    assert loss_monitor(monitor) == settings
    line = constant_advice(monitor, [0.1] * 5)
    assert line is not None
    assert line.endswith(f"monitor what changes, such as {settings}." if settings else "monitor what changes.")


def test_the_advisor_sees_evaluations_on_the_validation_split_and_keeps_them_over_a_resume(make_run):
    advisor, run = Advisor(), make_run()
    advisor.on_fit_begin(run)
    for step in range(1, 5):
        advisor.on_evaluation_end(run, Report(step, "validation", {"metric/accuracy": 0.1}))
        advisor.on_evaluation_end(run, Report(step, "test", {"metric/accuracy": 0.7}))
    state = json.loads(json.dumps(advisor.state_dict()))
    assert advisor.warning({}) is None
    resumed, run.step = Advisor(), 4
    resumed.load_state_dict(state)
    resumed.on_fit_begin(run)
    resumed.on_evaluation_end(run, Report(5, "validation", {"metric/accuracy": 0.1}))
    assert "accuracy was 0.1000 in each of 5 evaluations" in str(resumed.warning({}))
    run.step = 0
    resumed.on_fit_begin(run)
    assert resumed.warning({}) is None  # another fit


@pytest.mark.parametrize(("since", "lines"), [(0, 0), (95, 0), (96, 1), (100, 1)])
def test_promises_that_hold_from_near_the_end_on_are_pointed_at(make_run, since, lines):
    found = Advisor().advise(make_run(best=Best("metric/accuracy", "max", since=since)))
    assert len(found) == lines
    assert all(f"holds from step {since} of 100 on, so that {100 - since} steps are left" in line for line in found)
    trial = make_run(total_steps=99, best=Best("metric/accuracy", "max", since=99))
    assert Advisor().advise(trial) == []


@pytest.mark.parametrize(
    ("settings", "longer"),
    [({"epochs": 10, "steps": None}, "trainer.epochs=16"), ({"epochs": None, "steps": 101}, "trainer.steps=152")],
)
def test_a_longer_run_is_asked_for_in_the_unit_that_the_run_has(make_run, settings, longer):
    best = Best("metric/accuracy", "max", since=101)
    line = late_advice(make_run(config={"trainer": settings}, total_steps=101, best=best))
    assert line is not None
    assert line.endswith(f"or train longer: {longer}.")


NORM = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(name="norm")])


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"batch_size": 8}, None),
        ({"batch_size": 7}, "7 examples at a time and normalize by a variance that is off by about 58 %"),
        ({"batch_size": 1}, "1 example at a time and normalize by nothing but that example"),
        ({"batch_size": 16, "replicas": 2}, None),
        ({"batch_size": 16, "replicas": 4}, "Set +hooks=synchronized_batch_norm or trainer.batch_size=64."),
        ({"batch_size": 16, "replicas": 4, "synchronized": True}, None),
        ({"batch_size": 4, "replicas": 4, "synchronized": True}, "Set trainer.batch_size=16."),
        ({"batch_size": 3, "replicas": 3, "synchronized": True}, "Set trainer.batch_size=18."),
        ({"batch_size": 16, "micro_batches": 2}, None),
        ({"batch_size": 16, "micro_batches": 4}, "Set trainer.accumulation_steps=1 or trainer.batch_size=64."),
    ],
)
def test_batch_norm_over_few_examples_is_pointed_at(given, seen):
    defaults = {"replicas": 1, "micro_batches": 1, "synchronized": False}
    line = norm_batch_advice({"model": NORM}, **{**defaults, **given})
    assert (line is None) if seen is None else (line is not None and seen in line)
    assert norm_batch_advice({"model": keras.Sequential([keras.Input((4,))])}, **{**defaults, **given}) is None


@pytest.mark.parametrize("hooks", [None, {"synchronized_batch_norm": None}])
def test_a_hook_that_is_set_to_null_synchronizes_nothing(make_run, hooks):
    networks = {"model": Network("model", NORM, keras.optimizers.Adam())}
    run = make_run(networks=networks, config={"hooks": hooks}, batch_size=8, replicas=4)
    (line,) = Advisor().advise(run)
    assert "see 2 examples at a time" in line
    run.config["hooks"] = {"synchronized_batch_norm": {"layers": "*"}}
    assert Advisor().advise(run) == []


def test_batch_norm_that_stands_still_sees_no_batch():
    frozen = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(trainable=False)])
    assert norm_batch_advice({"a": frozen}, batch_size=1, replicas=1, micro_batches=1, synchronized=False) is None


def bare(*before: layers.Layer, behind: Sequence[layers.Layer] = ()) -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *before, layers.Dense(3, "tanh", name="first"), *behind])


@pytest.mark.parametrize(
    ("model", "largest", "warned"),
    [
        (bare(), 255.0, True),
        (bare(), 20.0, True),
        (bare(), 19.9, False),
        (bare(layers.Rescaling(1 / 255)), 255.0, False),
        (bare(layers.BatchNormalization()), 255.0, False),
        (bare(layers.LayerNormalization()), 255.0, False),
        (bare(layers.GroupNormalization(2)), 255.0, False),
        (bare(keras.Sequential([keras.Input((4,)), layers.Rescaling(1 / 255)])), 255.0, False),
        (bare(behind=[layers.Rescaling(10.0)]), 255.0, True),
        (bare(layers.Flatten(), behind=[layers.BatchNormalization()]), 255.0, True),
        (NORM, 255.0, False),
    ],
)
def test_raw_pixels_without_a_norm_behind_the_first_layer_are_pointed_at(model, largest, warned):
    line = input_range_advice({"model": model}, 0.0, largest)
    assert (line is not None) is warned


def test_the_advisor_reads_examples_and_asks_every_rule(make_run):
    inputs = np.full((12, 4), 255.0, np.float32)
    source = ArraySource({"inputs": inputs, "targets": np.zeros(12, np.int64)}, lambda batch: batch)
    training = TrainingBatches(Split("train", source, np.arange(12)), batch_size=4, seed=0)
    models = {"a": bare(), "b": NORM}
    run = make_run(
        networks={name: Network(name, model, keras.optimizers.Adam()) for name, model in models.items()},
        training=training,
        batch_size=4,
        best=Best("metric/accuracy", "min", since=100),
    )
    found = Advisor().advise(run)
    for line, part in zip(found, ("monitor_mode=max", "100 of 100", "batch norm", "inputs reach"), strict=True):
        assert part in line
    run.networks["a"].fixed = run.networks["b"].fixed = True  # nobody trains them
    assert len(Advisor().advise(run)) == 2
