"""A fused optimizer stands wherever the Keras optimizer does: in checkpoints, configs, steps and under hooks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.rate_schedules import ScaledRate, Warmup
from hookline.trainer.step.writes import all_writes
from tests.support.optimizers import PAIRS, built, state_of
from tests.support.toy import toy_loop, toy_network, values_of

SLOTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {"use_ema": True},
    "AdamW": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
}
FAST = {"SGD": {"momentum": 0.9}, "Adam": {}, "AdamW": {"weight_decay": 0.1}, "RMSprop": {"momentum": 0.9}}


@pytest.mark.parametrize("name", PAIRS)
def test_a_checkpoint_changes_hands_in_the_middle_of_training(name: str) -> None:
    gradients = [tf.constant([1.0, -0.5, 2.0]) * (1.0 + step) for step in range(6)]

    def train(kinds: list[type]) -> list[np.ndarray]:
        store: dict[str, np.ndarray] = {}
        values = [np.ones(3, np.float32)]
        for place, kind in enumerate(kinds):
            optimizer = kind(keras.optimizers.schedules.CosineDecay(0.1, 10), **FAST[name])
            variables = built(optimizer, values)
            if store:
                optimizer.load_own_variables(store)
            for gradient in gradients[3 * place : 3 * place + 3]:
                optimizer.apply([gradient], variables)
            optimizer.save_own_variables(store)
            values = [variables[0].numpy()]
        return state_of(optimizer, variables)

    theirs, ours = PAIRS[name]
    expected = train([theirs, theirs])
    for kinds in ([theirs, ours], [ours, theirs]):
        for changed, kept in zip(train(kinds), expected, strict=True):
            np.testing.assert_allclose(changed, kept, rtol=3e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_a_config_makes_the_same_optimizer_again(name: str) -> None:
    theirs, ours = PAIRS[name]
    rate = ScaledRate(Warmup(0.3, 4))
    optimizer = ours(rate, weight_decay=0.1, global_clipnorm=2.0, **SLOTS[name])
    assert isinstance(optimizer, theirs)
    again = ours.from_config(optimizer.get_config())
    assert type(again) is ours
    assert again.get_config() == optimizer.get_config()
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(loaded) is ours
    of_keras = theirs(rate, name=loaded.name, weight_decay=0.1, global_clipnorm=2.0, **SLOTS[name])
    assert loaded.get_config() == of_keras.get_config()


@pytest.mark.parametrize("name", PAIRS)
def test_a_step_trains_as_with_keras_and_its_audit_finds_every_write(name: str) -> None:
    found = []
    for kind in PAIRS[name]:
        keras.utils.set_random_seed(3)
        network = toy_network(optimizer=kind(0.01, **FAST[name]))
        loop = toy_loop(network=network)
        commit = loop.trainer.commits[0]
        assert set(commit.apply_ops) == set(network.trainable_variables)
        written = {write.handle for write in all_writes(commit.graph.get_operations())}
        slots = [slot for each in network.trainable_variables for slot in network.optimizer_slots(each).values()]
        assert {id(slot.value.handle) for slot in slots} <= written
        loop.run(0, 8)
        found.append({"loss": loop.accumulators.read()["loss/total"], **values_of(network)})
    assert any(each.type.startswith("ResourceApply") for each in commit.graph.get_operations())
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        if "bias" not in key and "moving_mean" not in key:  # before batch norm, a bias is moved by rounding alone
            np.testing.assert_allclose(found[1][key], value, rtol=1e-3, atol=1e-5, err_msg=key)
