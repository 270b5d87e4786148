"""Dynamic network surgery: latent entries live on behind the mask, and come back until the masks are final."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.prune import Prune
from tests.support.toy import toy_loop, toy_network, values_of
from trainer.hook import GraphHook

HIDDEN = "toy/hidden/kernel"


class Watch(GraphHook):
    """Record what the forward pass used and which gradients came back."""

    after = ("prune",)
    name = "watch"

    def build(self, context) -> None:
        shape = context.network.variables[HIDDEN].shape
        self.seen = {name: tf.Variable(tf.zeros(shape)) for name in ("weight", "gradient")}

    def state(self) -> dict[str, tf.Variable]:
        return self.seen

    def update_ops(self, context) -> list:
        weight, gradient = context.weights[HIDDEN], context.gradients[HIDDEN]
        return [self.seen["weight"].assign(weight), self.seen["gradient"].assign(gradient)]


def make(network=None, *, xla: bool = False, **options):
    hook, watch = Prune(schedule="splicing", **options), Watch()
    hook.name = "prune"
    network = network or toy_network(optimizer=keras.optimizers.SGD(0.5, momentum=0.9))
    return hook, watch, network, toy_loop([hook, watch], network=network, xla=xla)


def mask_of(hook: Prune) -> np.ndarray:
    return hook.state()[f"mask/{HIDDEN}"].numpy()


@pytest.mark.parametrize("xla", [False, True])
def test_the_forward_pass_sees_zeros_and_every_latent_entry_gets_a_gradient(xla: bool):
    hook, watch, network, loop = make(
        layers="hidden", final_sparsity=0.75, initial_sparsity=0.75, end_epoch=20.0, xla=xla
    )
    loop.run(0, 5)
    mask, latent = mask_of(hook), values_of(network)[HIDDEN]
    assert (~mask).sum() == 36
    loop.run(5, 1)
    np.testing.assert_array_equal(watch.seen["weight"].numpy(), np.where(mask, latent, 0.0))
    assert (watch.seen["gradient"].numpy()[~mask] != 0).all()
    assert (latent[~mask] != 0).all()
    assert (values_of(network)[HIDDEN][~mask] != latent[~mask]).all()


def test_the_gradient_is_that_of_the_masked_network():
    hook, watch, network, loop = make(final_sparsity=0.75, initial_sparsity=0.75, end_epoch=20.0)
    loop.run(0, 5)
    latent = values_of(network)
    loop.run(5, 1)
    gradient = watch.seen["gradient"].numpy()
    # A dense network that holds the masked weights has the same gradient.
    twin = toy_network()
    for name, variable in twin.variables.items():
        mask = hook.state().get(f"mask/{name}")
        variable.assign(latent[name] if mask is None else np.where(mask.numpy(), latent[name], 0.0))
    plain = Watch()
    toy_loop([plain], network=twin).run(5, 1)
    np.testing.assert_allclose(gradient, plain.seen["gradient"].numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("xla", [False, True])
def test_entries_come_back_before_the_end_and_none_after_it(xla: bool):
    hook, watch, network, loop = make(final_sparsity=0.75, initial_sparsity=0.75, end_epoch=15.0, frequency=2, xla=xla)
    assert hook.settled_at() == 60
    loop.run(0, 1)
    first, returned = mask_of(hook), np.zeros((6, 8), bool)
    for step in range(1, 60):
        loop.run(step, 1)
        returned |= mask_of(hook) & ~first
        assert (~mask_of(hook)).sum() == 36
    assert returned.any()
    final = mask_of(hook)
    for step in range(60, 80):
        assert (values_of(network)[HIDDEN][~final] == 0).all()
        loop.run(step, 1)
        assert (mask_of(hook) == final).all()
        assert (watch.seen["gradient"].numpy()[~final] == 0).all()


def test_from_the_last_update_on_the_moving_average_is_held_at_zero_too():
    network = toy_network(optimizer=keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9))
    hook, _, network, loop = make(network, final_sparsity=0.75, end_epoch=3.0, frequency=5)
    average = network.optimizer_slots(HIDDEN)["_model_variables_moving_average"]
    loop.run(0, 11)
    assert (average.numpy() != 0).all()
    loop.run(11, 1)
    assert (average.numpy()[~mask_of(hook)] == 0).all()
    loop.run(12, 20)
    assert (average.numpy()[~mask_of(hook)] == 0).all()
    assert (average.numpy()[mask_of(hook)] != 0).all()


def test_a_large_hysteresis_lets_nothing_back():
    hook, _, _, loop = make(final_sparsity=0.75, initial_sparsity=0.75, end_epoch=15.0, frequency=2, hysteresis=1e6)
    loop.run(0, 1)
    first = mask_of(hook)
    loop.run(1, 70)
    assert (mask_of(hook) == first).all()


def test_until_the_end_the_measure_is_that_of_the_masked_network():
    hook, _, network, loop = make(final_sparsity=0.5, initial_sparsity=0.5, end_epoch=20.0)
    loop.run(0, 1)
    loop.accumulators.reset()
    loop.run(1, 3)
    assert loop.accumulators.read()["sparsity/total"] == 0.5
    assert (values_of(network)[HIDDEN] != 0).all()
    assert hook.summary()["total"]["sparsity"] == 0.0
    assert hook.summary()["total"]["mask"] == 0.5
