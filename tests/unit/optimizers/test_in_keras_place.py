"""A fused optimizer stands wherever the Keras optimizer does: in checkpoints, configs, steps and under hooks."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.frozen_mask import FrozenMask
from hooks.monitors.nan_guard import NanGuard
from tests.support.masking import bits, masked_loop, small_network
from tests.support.optimizers import PAIRS, built, state_of
from tests.support.poison import Poison
from tests.support.toy import toy_loop, toy_network, values_of
from trainer.network import Network
from trainer.rate_schedules import ScaledRate, Warmup
from trainer.step.copy_network import copy_network
from trainer.step.writes import all_writes

SLOTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {"use_ema": True},
    "AdamW": {"amsgrad": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
}
FAST = {"SGD": {"momentum": 0.9}, "Adam": {}, "AdamW": {"weight_decay": 0.1}, "RMSprop": {"momentum": 0.9}}


@pytest.mark.parametrize("name", PAIRS)
def test_variables_have_the_names_shapes_and_order_of_keras(name: str) -> None:
    theirs, ours = (toy_network(optimizer=kind(0.1, **SLOTS[name])) for kind in PAIRS[name])
    assert list(ours.optimizer_variables) == list(theirs.optimizer_variables)
    shapes = [[each.shape for each in network.optimizer.variables] for network in (theirs, ours)]
    assert shapes[0] == shapes[1]
    for variable in theirs.trainable_variables:
        assert list(ours.optimizer_slots(variable)) == list(theirs.optimizer_slots(variable))


@pytest.mark.parametrize("first", [0, 1], ids=["from_keras", "to_keras"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_checkpoint_changes_hands_in_the_middle_of_training(name: str, first: int) -> None:
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

    kinds = PAIRS[name]
    for changed, kept in zip(train([kinds[first], kinds[1 - first]]), train([kinds[0]] * 2), strict=True):
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


def test_a_loss_scale_around_it_leaves_an_overflow_out_and_goes_on() -> None:
    found = []
    for kind in PAIRS["Adam"]:
        optimizer = keras.optimizers.LossScaleOptimizer(kind(0.1), initial_scale=8.0)
        variables = built(optimizer, [np.ones(2)])
        for gradient in ([8.0, -8.0], [np.inf, 1.0], [4.0, 2.0]):
            optimizer.apply([tf.constant(gradient)], variables)
        found.append(state_of(optimizer, variables))
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)
    assert float(optimizer.dynamic_scale.numpy()) == 4.0
    assert int(optimizer.iterations.numpy()) == 2


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


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_step_that_is_held_back_leaves_variables_and_slots(name: str) -> None:
    guard, poison = NanGuard(), Poison(place="gradient", steps=[2])
    guard.name = "nan_guard"
    guard.network = "model"
    network = toy_network(optimizer=PAIRS[name][1](0.1, **FAST[name]))
    loop = toy_loop([guard, poison], network=network)
    assert loop.run(0, 2) == (2, [])
    before = values_of(network)
    made, vetoes = loop.run(2, 3)
    assert made == 2
    assert vetoes
    for key, value in values_of(network).items():
        assert value.tobytes() == before[key].tobytes(), key


@pytest.mark.parametrize("name", PAIRS)
def test_frozen_entries_keep_their_bits_and_their_slots_are_clear(name: str) -> None:
    network = small_network(PAIRS[name][1](0.05, **{"weight_decay": 0.1, **FAST[name]}))
    hook = FrozenMask(fraction=0.5)
    hook.name = "frozen_mask"
    loop = masked_loop([hook], network)
    start = values_of(network)
    loop.run(0, 5)
    for kernel in ("hidden/kernel", "logits/kernel"):
        trains = hook.state()[f"mask/{kernel}"].numpy()
        now = network.variables[kernel].numpy()
        assert (bits(now)[~trains] == bits(start[kernel])[~trains]).all()
        assert (now[trains] != start[kernel][trains]).all()
        for slot in network.optimizer_slots(kernel).values():
            assert (slot.numpy()[~trains] == 0.0).all()


def test_a_copy_takes_its_slots_and_a_reset_clears_them() -> None:
    networks = [toy_network(name, PAIRS["Adam"][1](ScaledRate(Warmup(0.1, 2)))) for name in ("source", "target")]
    source, target = networks
    source.optimizer.apply([tf.ones(each.shape) for each in source.optimizer._trainable_variables])

    def slots(network: Network) -> list[np.ndarray]:
        return [each.numpy() for each in network.optimizer.variables]

    copy_network(source, target, optimizer="copy")
    assert all((a == b).all() for a, b in zip(slots(source), slots(target), strict=True))
    assert any(each.any() for each in slots(target))
    copy_network(source, target, optimizer="reset")
    assert not any(each.any() for each in slots(target))
