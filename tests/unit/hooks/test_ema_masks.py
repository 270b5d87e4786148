"""Averages beside hooks that hold values: masks, levels, frozen layers, and the plain model of such a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest

from hooks.ema import Ema
from hooks.freeze_layers import FreezeLayers
from hooks.frozen_mask import FrozenMask
from hooks.incremental_quantization import IncrementalQuantization
from hooks.prune import Prune
from tests.support.masking import KERNELS, Maker, bits, kernels_of, masked_loop, small_network
from tests.support.toy import toy_loop, toy_network
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.run.shipped import shipped_weights
from trainer.step.loop import ChunkLoop

Values = dict[str, np.ndarray]


def named(hook: GraphHook, name: str) -> GraphHook:
    hook.name = name
    return hook


def ema() -> Ema:
    hook = Ema(decay=0.9, warm_up=False)
    hook.name = "ema"
    return hook


def loop_with(*hooks: GraphHook) -> tuple[ChunkLoop, Network]:
    """Return a loop with averages; an epoch has 4 steps."""
    network = small_network(keras.optimizers.Adam(0.05))
    return masked_loop([*hooks, ema()], network), network


def check_entries(found: Values, now: Values, held: Values) -> None:
    """Expect the bits of now where held, and an average elsewhere."""
    for name, value in now.items():
        np.testing.assert_array_equal(bits(found[name])[held[name]], bits(value)[held[name]], err_msg=name)
        free = ~held[name]
        assert np.mean(found[name][free] != value[free]) > 0.9 or not free.any(), name


def masks_of(hook: GraphHook) -> Values:
    return {name: hook.state()[f"mask/{name}"].numpy() for name in KERNELS}


def nobody(network: Network) -> Values:
    return {name: np.zeros(value.shape, bool) for name, value in kernels_of(network).items()}


def test_masked_entries_are_at_their_value_from_the_step_on_in_which_they_freeze() -> None:
    mask = named(FrozenMask(fraction=0.6, begin_epoch=1.0), "frozen_mask")
    loop, network = loop_with(mask)
    loop.run(0, 4)
    check_entries(shipped_weights(loop.trainer, 4)["model"], kernels_of(network), nobody(network))
    for step in (4, 5, 6, 12):  # the mask is taken in step 4, from values that moved until then
        loop.run(step, 1)
        held = {name: ~trains for name, trains in masks_of(mask).items()}
        assert all(each.mean() == pytest.approx(0.6, abs=0.05) for each in held.values())
        assert all((kernels_of(network)[name][held[name]] != 0).all() for name in KERNELS)
        check_entries(shipped_weights(loop.trainer, step + 1)["model"], kernels_of(network), held)


def some_masks(seed: int) -> Values:
    generator = np.random.default_rng(seed)
    return {"hidden/kernel": generator.random((6, 5)) < 0.5, "logits/kernel": generator.random((5, 3)) < 0.5}


def test_masks_that_are_followed_hold_too_whatever_value_their_maker_gives() -> None:
    maker = Maker({3: some_masks(0), 6: some_masks(1)}, value=0.25)
    follower = FrozenMask(masks="hook", hook="maker", begin_epoch=0.5)
    loop, network = loop_with(maker, named(follower, "frozen_mask"))
    for step in range(9):
        loop.run(step, 1)
        held = {name: ~trains for name, trains in masks_of(maker).items()} if step >= 3 else nobody(network)
        check_entries(shipped_weights(loop.trainer, step + 1)["model"], kernels_of(network), held)
    assert (kernels_of(network)["hidden/kernel"][held["hidden/kernel"]] == 0.25).any()


def test_masks_to_follow_later_hold_nothing_before() -> None:
    maker = Maker({1: some_masks(0)})
    loop, network = loop_with(maker, named(FrozenMask(masks="hook", hook="maker", begin_epoch=1.0), "frozen_mask"))
    loop.run(0, 4)
    check_entries(shipped_weights(loop.trainer, 4)["model"], kernels_of(network), nobody(network))
    loop.run(4, 1)
    held = {name: ~trains for name, trains in masks_of(maker).items()}
    check_entries(shipped_weights(loop.trainer, 5)["model"], kernels_of(network), held)


@pytest.mark.parametrize("schedule", ["one_shot", "splicing"])
@pytest.mark.parametrize("follow", [False, True], ids=["alone", "with_frozen_mask"])
def test_pruned_entries_are_exactly_zero_and_the_others_averages(schedule: str, follow: bool) -> None:
    options: dict[str, Any] = {"begin_epoch": 1.0} if schedule == "one_shot" else {"frequency": 1, "end_epoch": 10}
    prune = named(Prune(schedule=schedule, final_sparsity=0.5, **options), "prune")
    holders = [named(FrozenMask(masks="hook", hook="prune"), "frozen_mask")] if follow else []
    loop, network = loop_with(prune, *holders)
    loop.run(0, 9)
    shipped = shipped_weights(loop.trainer, 9)["model"]
    for name, kept in masks_of(prune).items():
        assert not kept.all()
        assert (bits(shipped[name])[~kept] == 0).all()
        assert np.mean(shipped[name][kept] != kernels_of(network)[name][kept]) > 0.9
        if schedule == "splicing":  # what is held is the latent value, of which the forward pass sees nothing
            assert (kernels_of(network)[name][~kept] != 0).any()


def test_quantized_entries_are_on_their_levels() -> None:
    quantization = IncrementalQuantization(shares=[0.5, 1.0], begin_epoch=1.0, step_epochs=2.0)
    loop, network = loop_with(named(quantization, "incremental_quantization"))
    loop.run(0, 6)
    held = {name: ~trains for name, trains in masks_of(quantization).items()}
    check_entries(shipped_weights(loop.trainer, 6)["model"], kernels_of(network), held)
    loop.run(6, 8)
    shipped = shipped_weights(loop.trainer, 14)["model"]
    assert quantization.stored_bits(shipped) == dict.fromkeys(KERNELS, 5.0)
    assert (shipped["hidden/bias"] != network.variables["hidden/bias"].numpy()).any()


def frozen_toy(**options: Any) -> tuple[ChunkLoop, Network]:
    network = toy_network(optimizer=keras.optimizers.Adam(0.05))
    network.model.get_layer("norm").momentum = 0.5
    freeze = named(FreezeLayers(layers=["hidden", "norm"], **options), "freeze_layers")
    return toy_loop([freeze, ema()], network=network), network


def compare(loop: ChunkLoop, network: Network, step: int) -> set[str]:
    """Return the names of what evaluations use as it is now, bit for bit."""
    shipped = shipped_weights(loop.trainer, step)["model"]
    return {n for n, v in network.weights.items() if np.array_equal(bits(shipped[n]), bits(v.numpy()))}


FROZEN = {
    *("toy/hidden/kernel", "toy/hidden/bias", "toy/norm/gamma"),
    *("toy/norm/beta", "toy/norm/moving_mean", "toy/norm/moving_variance"),
}


def test_a_layer_that_never_trains_is_as_it_is() -> None:
    loop, network = frozen_toy()
    loop.run(0, 20)
    assert compare(loop, network, 20) == FROZEN


def test_a_layer_is_as_it_is_while_it_is_frozen_and_an_average_before_and_after() -> None:
    loop, network = frozen_toy(begin_epoch=1.0, end_epoch=2.0)  # steps 4 to 7
    for step, expected in ((3, set()), (4, FROZEN), (6, FROZEN), (7, FROZEN), (8, set())):
        loop.run(step if step != 3 else 0, 1 if step != 3 else 4)
        if step == 4:
            loop.run(5, 1)
        assert compare(loop, network, step + 1) == expected, step


def test_statistics_that_go_on_are_averaged_beside_frozen_weights() -> None:
    loop, network = frozen_toy(batch_norm="running")
    loop.run(0, 9)
    assert compare(loop, network, 9) == {name for name in FROZEN if "moving" not in name}


HOLDERS: dict[str, Callable[[], Sequence[GraphHook]]] = {
    "frozen_mask": lambda: [named(FrozenMask(fraction=0.5, begin_epoch=1.0), "frozen_mask")],
    "splicing": lambda: [
        named(Prune(schedule="splicing", frequency=1, end_epoch=10), "prune"),
        named(FrozenMask(masks="hook", hook="prune"), "frozen_mask"),
    ],
    "levels": lambda: [named(IncrementalQuantization(shares=[0.5, 1.0], step_epochs=2.0), "incremental_quantization")],
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_without_averages_what_is_held_changes_nothing(kind: str) -> None:
    network = small_network(keras.optimizers.Adam(0.05))
    hooks = list(HOLDERS[kind]())
    loop = masked_loop(hooks, network)
    loop.run(0, 7)
    shipped, now = shipped_weights(loop.trainer, 7)["model"], kernels_of(network)
    for name in KERNELS:
        expected = np.where(masks_of(hooks[0])[name], now[name], 0.0) if kind == "splicing" else now[name]
        np.testing.assert_array_equal(bits(shipped[name]), bits(expected))
