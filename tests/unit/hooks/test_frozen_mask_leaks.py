"""Frozen entries keep their bits under every optimizer, whatever pulls at them, while survivors move."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.frozen_mask import FrozenMask
from hooks.masking.hold import AVERAGE
from tests.support.masking import KERNELS, Maker, bits, kernels_of, masked_loop, small_network
from tests.support.toy import StatelessHook, toy_batch
from trainer.network import Network

STEPS, HISTORY = 200, 5
OPTIMIZERS = {
    "sgd": lambda **more: keras.optimizers.SGD(0.05, **more),
    "momentum": lambda **more: keras.optimizers.SGD(0.05, momentum=0.9, **more),
    "nesterov": lambda **more: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **more),
    "adam": lambda **more: keras.optimizers.Adam(0.01, amsgrad=True, **more),
    "adamw": lambda **more: keras.optimizers.AdamW(0.01, **{"weight_decay": 0.004, **more}),
    "rmsprop": lambda **more: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True, **more),
    "lion": lambda **more: keras.optimizers.Lion(0.003, **more),
    "adagrad": lambda **more: keras.optimizers.Adagrad(0.05, **more),
    "adafactor": lambda **more: keras.optimizers.Adafactor(0.05, **more),
}
CONDITIONS = {
    "momentum_history": {"history": True},
    "weight_decay": {"weight_decay": 0.05},
    "l2": {"regularizer": 0.05},
    "ema": {"use_ema": True, "ema_momentum": 0.9},
    "global_clip": {"global_clipnorm": 0.1},
    "all": {
        "history": True,
        "weight_decay": 0.05,
        "regularizer": 0.05,
        "use_ema": True,
        "ema_momentum": 0.9,
        "ema_overwrite_frequency": 7,
        "global_clipnorm": 0.1,
    },
}
DERIVED_SLOTS = {"_v"}  # Adafactor makes it anew in each step, from rows and columns


def masks() -> dict[str, np.ndarray]:
    """Return masks that freeze about half of the entries: bool, False where frozen."""
    generator = np.random.default_rng(1)
    return {name: generator.random(shape) < 0.5 for name, shape in zip(KERNELS, ((6, 5), (5, 3)), strict=True)}


def mask_file(folder: Path) -> str:
    np.savez(folder / "masks.npz", **masks())
    return str(folder / "masks.npz")


def frozen_mask(folder: Path, **options) -> FrozenMask:
    hook = FrozenMask(masks="file", path=mask_file(folder), **options)
    hook.name = "frozen_mask"
    return hook


def set_some_to_zero(network: Network) -> dict[str, np.ndarray]:
    """Set a third of the frozen entries to 0.0 or -0.0; return all kernels as they are then."""
    for name, mask in masks().items():
        values = np.array(network.variables[name].value)
        zeros = np.flatnonzero(~mask)[::3]
        values.flat[zeros] = np.resize([0.0, -0.0], zeros.shape)
        network.variables[name].assign(values)
    return kernels_of(network)


def assert_frozen(network: Network, start: dict[str, np.ndarray]) -> None:
    for name, mask in masks().items():
        now = np.array(network.variables[name].value)
        assert np.count_nonzero(bits(now)[~mask] != bits(start[name])[~mask]) == 0, name
        assert np.mean(now[mask] != start[name][mask]) > 0.9, f"survivors of {name} must move"
        assert np.isfinite(now).all()


def assert_slots_held(network: Network) -> None:
    for name, mask in masks().items():
        for attribute, slot in network.optimizer_slots(name).items():
            values = np.array(slot.value)
            if attribute == AVERAGE:
                frozen = np.array(network.variables[name].value)[~mask]
                np.testing.assert_array_equal(bits(values[~mask]), bits(frozen))
            elif attribute not in DERIVED_SLOTS:
                assert not values[~mask].any(), f"{attribute} of {name}"
                assert values[mask].any(), f"{attribute} of {name} must be in use"


def run_cell(folder: Path, optimizer: str, condition: str, *, xla: bool = False) -> None:
    """Train 200 steps with half of the entries frozen, and look at values, slots and averages."""
    settings = dict(CONDITIONS[condition])
    history, regularizer = settings.pop("history", False), settings.pop("regularizer", 0.0)
    network = small_network(OPTIMIZERS[optimizer](**settings), regularizer=regularizer)
    hook = frozen_mask(folder, begin_epoch=HISTORY / 4 if history else 0.0)
    loop = masked_loop([hook], network, xla=xla)
    begin = HISTORY if history else 0
    free = kernels_of(network)
    loop.run(0, begin)
    if history:  # before the freeze, everything moves
        assert all(np.mean(now != free[name]) > 0.9 for name, now in kernels_of(network).items())
    start = set_some_to_zero(network)
    loop.run(begin, STEPS)
    assert_frozen(network, start)
    assert_slots_held(network)
    if network.optimizer.use_ema:
        network.optimizer.finalize_variable_values(network.model.trainable_variables)
        assert_frozen(network, start)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_entries_keep_their_bits_and_survivors_move(optimizer: str, condition: str, tmp_path):
    run_cell(tmp_path, optimizer, condition)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_entries_keep_their_bits_under_xla_with_every_pull_at_once(optimizer: str, tmp_path):
    run_cell(tmp_path, optimizer, "all", xla=True)


@pytest.mark.parametrize("optimizer", ["nadam", "adamax", "adadelta", "ftrl", "muon", "loss_scale"])
def test_further_optimizers_do_not_leak_either(optimizer: str, tmp_path):
    pulls = {"weight_decay": 0.05, "use_ema": True, "ema_momentum": 0.9}
    made = {
        "nadam": lambda: keras.optimizers.Nadam(0.01, **pulls),
        "adamax": lambda: keras.optimizers.Adamax(0.01, **pulls),
        "adadelta": lambda: keras.optimizers.Adadelta(0.5, **pulls),
        "ftrl": lambda: keras.optimizers.Ftrl(0.05, l2_regularization_strength=0.01, **pulls),
        "muon": lambda: keras.optimizers.Muon(0.01, **pulls),
        "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=8.0),
    }
    network = small_network(made[optimizer]())
    loop = masked_loop([frozen_mask(tmp_path, begin_epoch=HISTORY / 4)], network)
    loop.run(0, HISTORY)
    start = set_some_to_zero(network)
    loop.run(HISTORY, 60)
    assert_frozen(network, start)


def test_a_constraint_of_the_layer_does_not_move_what_is_frozen(tmp_path):
    network = small_network(keras.optimizers.SGD(0.1))
    for name in KERNELS:
        network.variables[name].constraint = keras.constraints.MaxNorm(0.3)
    loop = masked_loop([frozen_mask(tmp_path)], network)
    start = set_some_to_zero(network)
    loop.run(0, 20)
    assert_frozen(network, start)


def test_adafactor_trains_beside_a_frozen_row_and_column_with_a_larger_epsilon(tmp_path):
    """Without a gradient in a whole row and column, its second moment 1e-30 * 1e-30 is 0, and 0 / 0 is NaN."""
    mask = np.ones((6, 5), bool)
    mask[2] = mask[:, 1] = False
    np.savez(tmp_path / "cross.npz", **{"hidden/kernel": mask})
    hook = FrozenMask(masks="file", path=str(tmp_path / "cross.npz"))
    network = small_network(keras.optimizers.Adafactor(0.05, epsilon_1=1e-12))
    start = kernels_of(network)["hidden/kernel"]
    masked_loop([hook], network).run(0, 30)
    now = kernels_of(network)["hidden/kernel"]
    assert np.isfinite(now).all()
    np.testing.assert_array_equal(now != start, mask)


def test_frozen_denormal_and_huge_values_keep_their_bits(tmp_path):
    network = small_network(keras.optimizers.AdamW(0.01, weight_decay=0.1))
    loop = masked_loop([frozen_mask(tmp_path)], network)
    odd = np.array([1e-42, -1e-45, 3e38], np.float32)
    values = np.array(network.variables["logits/kernel"].value)
    frozen = np.flatnonzero(~masks()["logits/kernel"])
    values.flat[frozen] = np.resize(odd, frozen.shape)
    network.variables["logits/kernel"].assign(values)
    loop.run(0, 5)
    now = np.array(network.variables["logits/kernel"].value)
    np.testing.assert_array_equal(bits(now).flat[frozen], bits(values).flat[frozen])


def test_global_norm_clipping_does_not_count_frozen_entries(tmp_path):
    """One SGD step at 1: survivors move by c g / ||g|| with the norm of what trains, not of everything."""
    plain = small_network(keras.optimizers.SGD(1.0))
    before = {name: np.array(variable.value) for name, variable in plain.variables.items()}
    masked_loop([], plain).run(0, 1)
    trains = {name: masks().get(name, np.ones(value.shape, bool)) for name, value in before.items()}
    gradients = {name: before[name] - np.array(variable.value) for name, variable in plain.variables.items()}
    norm = np.sqrt(sum(np.square(gradient[trains[name]]).sum() for name, gradient in gradients.items()))
    everything = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients.values()))
    assert everything > 1.2 * norm, "or the test could not tell them apart"

    clipped = small_network(keras.optimizers.SGD(1.0, global_clipnorm=0.1))
    for name, variable in clipped.variables.items():
        variable.assign(before[name])
    masked_loop([frozen_mask(tmp_path)], clipped).run(0, 1)
    for name, variable in clipped.variables.items():
        expected = np.where(trains[name], before[name] - 0.1 / norm * gradients[name], before[name])
        np.testing.assert_allclose(np.array(variable.value), expected, atol=1e-6)


def test_regularizers_give_frozen_entries_no_gradient_but_count_them_in_the_loss(tmp_path):
    seen: dict[str, tf.Variable] = {
        name: tf.Variable(np.ones(mask.shape, np.float32)) for name, mask in masks().items()
    }

    class Watch(StatelessHook):
        after = ("frozen_mask",)

        def update_ops(self, context):
            return [variable.assign(context.gradients[name]) for name, variable in seen.items()]

    network = small_network(keras.optimizers.SGD(0.1), regularizer=10.0)
    penalty = sum(10.0 * np.square(value).sum() for value in kernels_of(network).values())
    loop = masked_loop([frozen_mask(tmp_path), Watch("watch")], network)
    loop.run(0, 1)
    for name, mask in masks().items():
        assert not seen[name].numpy()[~mask].any()
        assert seen[name].numpy()[mask].all()
    assert loop.accumulators.read()["loss/layers_model"] == pytest.approx(penalty, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "rmsprop", "lion"])
def test_an_entry_that_is_freed_again_starts_without_the_momentum_of_old(optimizer: str):
    """Frozen from step 5 to 20; input 0 is silent from step 5 on, so its weights have no reason to move when freed."""
    frozen = {"hidden/kernel": np.arange(6)[:, None] * np.ones((1, 5)) > 0}

    def batch(step):
        drawn = toy_batch(step)
        silent = tf.concat([[tf.cast(step < HISTORY, tf.float32)], tf.ones(5)], 0)
        return {**drawn, "inputs": drawn["inputs"] * silent}

    free = {"hidden/kernel": np.ones((6, 5), bool)}
    maker = Maker({HISTORY: frozen, 20: free}, value=0.25)
    hook = FrozenMask(masks="hook", hook="maker")
    hook.name = "frozen_mask"
    network = small_network(OPTIMIZERS[optimizer]())
    loop = masked_loop([maker, hook], network, batch=batch)
    loop.run(0, 21)
    assert not any(slot.numpy()[0].any() for slot in network.optimizer_slots("hidden/kernel").values())
    loop.run(21, 30)
    np.testing.assert_array_equal(kernels_of(network)["hidden/kernel"][0], np.full(5, 0.25, np.float32))


def test_a_slot_that_another_hook_filled_is_empty_when_its_entry_is_freed():
    """A gradient that is added behind the mask moves nothing, and its momentum does not survive the release."""
    frozen = {"hidden/kernel": np.arange(6)[:, None] * np.ones((1, 5)) > 0}

    class Push(StatelessHook):
        after = ("frozen_mask",)

        def transform_gradients(self, gradients, context):
            push = tf.where(context.step < 10, 1.0, 0.0)
            return {**gradients, "hidden/kernel": gradients["hidden/kernel"] + push}

    maker = Maker({0: frozen, 10: {"hidden/kernel": np.ones((6, 5), bool)}})
    hook = FrozenMask(masks="hook", hook="maker")
    hook.name = "frozen_mask"
    network = small_network(OPTIMIZERS["momentum"]())
    loop = masked_loop([maker, hook, Push("push")], network)
    loop.run(0, 10)
    assert not kernels_of(network)["hidden/kernel"][0].any()
    assert np.array(network.optimizer_slots("hidden/kernel")["momentums"].value)[0].all()
    loop.run(10, 1)
    assert not np.array(network.optimizer_slots("hidden/kernel")["momentums"].value)[0].any()
