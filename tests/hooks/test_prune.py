"""The pruning hook in the traced step: what is pruned is 0 and stays 0, whatever the optimizer does."""

from __future__ import annotations

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.prune import Prune
from hookline.hooks.pruning.report import csr_bytes
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration, GraphHook
from tests.support.hooked import hooked
from tests.support.toy import build_context, toy_network, values_of

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.05, global_clipnorm=0.5),
    "average": lambda: keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8),
    "average_written_back": lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=3),
}
KERNELS = ("toy/hidden/kernel", "toy/logits/kernel")


def make(network=None, *, xla: bool = False, **options):
    """A built hook, its network and a loop of 100 steps, 4 to the epoch."""
    hook, network = Prune(**options), network or toy_network()
    return hook, network, hooked(network, hook, xla=xla)


def masks_of(hook: Prune) -> dict[str, np.ndarray]:
    state = hook.declare().state
    return {name.removeprefix("mask/"): v.numpy() for name, v in state.items() if name.startswith("mask/")}


@pytest.mark.parametrize(("name", "xla"), [(name, name == "average") for name in OPTIMIZERS])
def test_pruned_entries_are_exactly_zero_at_every_edge(name: str, xla: bool):
    network = toy_network(optimizer=OPTIMIZERS[name](), regularizer=0.01)
    # Pruning begins at step 12: momentum of the dense steps would carry entries away from 0.
    hook, network, loop = make(network, xla=xla, final_sparsity=0.75, begin_epoch=3.0, end_epoch=8.0, frequency=6)
    step, before = 0, None
    for chunk in (12, 1, 2, 5, 10, 1, 9):
        step, _ = loop.run(step, chunk)
        masks, values = masks_of(hook), values_of(network)
        for kernel in KERNELS:
            assert (values[kernel][~masks[kernel]] == 0).all()
            assert before is None or not (masks[kernel] & ~before[kernel]).any()
            average = network.optimizer_slots(kernel).get("_model_variables_moving_average")
            if average is not None:
                assert (average.numpy()[~masks[kernel]] == 0).all()
        before = masks
    assert step == 40
    assert {kernel: int((~mask).sum()) for kernel, mask in masks.items()} == dict(zip(KERNELS, (36, 18), strict=True))
    assert all((values[kernel][masks[kernel]] != 0).all() for kernel in KERNELS)


def test_masks_are_made_of_the_weights_as_the_step_finds_them():
    network = toy_network()
    before = values_of(network)
    hook, _, loop = make(network, schedule="one_shot", final_sparsity=0.5)
    loop.run(0, 1)
    for kernel, mask in masks_of(hook).items():
        magnitude = np.abs(before[kernel])
        assert mask.sum() == mask.size // 2
        assert magnitude[mask].min() >= magnitude[~mask].max()
    loop.accumulators.reset()
    loop.run(1, 3)
    found = {name: value for name, value in loop.accumulators.read().items() if name.startswith("sparsity/")}
    assert found == {"sparsity/total": 0.5, "sparsity/hidden": 0.5, "sparsity/logits": 0.5}


def test_the_final_sparsity_is_reached_at_an_end_between_updates():
    hook, _, loop = make(final_sparsity=0.9, end_epoch=10.0, frequency=7, power=1.0)
    assert hook.declare().best_from_step == 40
    loop.run(0, 39)
    assert masks_of(hook)["toy/hidden/kernel"].sum() > 48 - round(0.9 * 48)
    loop.run(39, 1)
    settled = masks_of(hook)
    assert {kernel: int((~mask).sum()) for kernel, mask in settled.items()} == {KERNELS[0]: 43, KERNELS[1]: 22}
    loop.run(40, 60)
    assert all((masks_of(hook)[kernel] == mask).all() for kernel, mask in settled.items())


def test_stages_prune_once_each_and_train_in_between():
    hook, network, loop = make(schedule="iterative", stages=[0.5, {"hidden": 0.75, "logits": 0.5}], stage_epochs=2.0)
    assert hook.declare().best_from_step == 9
    loop.run(0, 8)
    first, values = masks_of(hook), values_of(network)
    assert {kernel: int(mask.sum()) for kernel, mask in first.items()} == {KERNELS[0]: 24, KERNELS[1]: 12}
    loop.run(8, 1)
    second = masks_of(hook)
    assert {kernel: int(mask.sum()) for kernel, mask in second.items()} == {KERNELS[0]: 12, KERNELS[1]: 12}
    magnitude = np.abs(values[KERNELS[0]])
    gone = first[KERNELS[0]] & ~second[KERNELS[0]]
    assert magnitude[second[KERNELS[0]]].min() >= magnitude[gone].max()


def test_structures_and_the_global_scope_hold_in_the_step():
    hook, network, loop = make(layers="logits", structure={"n_m": [2, 4]}, end_epoch=5.0, frequency=3)
    loop.run(0, 25)
    (mask,) = masks_of(hook).values()
    assert (mask.reshape(2, 4, 3).sum(axis=1) == 2).all()
    values = values_of(network)
    assert (values[KERNELS[1]][~mask] == 0).all()
    assert hook.declare().projected == {KERNELS[1]}
    assert (values["toy/hidden/kernel"] != 0).all()
    network = toy_network()
    norms = np.square(values_of(network)[KERNELS[0]]).sum(axis=0)
    options = {"structure": "channel", "criterion": "l2", "schedule": "one_shot", "final_sparsity": 0.25}
    hook, _, loop = make(network, layers="hidden", **options)
    loop.run(0, 1)
    (mask,) = masks_of(hook).values()
    assert sorted(np.flatnonzero(~mask.any(axis=0))) == sorted(np.argsort(norms)[:2])
    network = toy_network()
    network.variables[KERNELS[1]].assign(np.linspace(1e-6, 2e-6, 24).reshape(8, 3))
    hook, _, loop = make(network, schedule="one_shot", final_sparsity=0.5, scope="global")
    loop.run(0, 1)
    assert [int(mask.sum()) for mask in masks_of(hook).values()] == [35, 1]


def test_what_does_not_fit_the_network_or_the_run_is_refused():
    frozen = toy_network()
    frozen.model.get_layer("hidden").trainable = False
    for options, word, network in (
        ({"layers": "hiden"}, "hiden", None),
        ({"end_epoch": 26.0}, "end_epoch", None),
        ({"initial_sparsity": 0.8}, "would fall", None),
        ({"final_sparsity": {"hidden": 0.5}}, "logits", None),
        ({"final_sparsity": {"*": 0.5, "fc1": 0.5}}, "fc1", None),
        ({"structure": {"n_m": [2, 4]}}, "6 inputs", None),
        ({"structure": "channel"}, "last layer", None),
        ({}, "not trainable", frozen),
    ):
        with pytest.raises(UserError, match=word):
            Prune(**options).build(build_context(network or toy_network()))


# What the summary says: entries, zeros and bytes.


def test_sparse_bytes_are_values_indices_and_row_pointers():
    for columns, bits in ((1, 0), (2, 1), (3, 2), (256, 8), (257, 9)):
        assert csr_bytes(0, columns, 8) == 8 * 4 + bits + 4
    kept = 18_816
    assert csr_bytes(784, 300, kept) == 4 * kept + kept * 9 // 8 + 4 * 785
    assert csr_bytes(5, 2, 0) == 24
    assert csr_bytes(1, 3, 1) == math.ceil((32 + 2 + 64) / 8)
    network = toy_network()
    network.model = keras.Sequential([keras.Input((6, 6, 2)), keras.layers.Conv2D(5, 3, name="conv")])
    network.optimizer = keras.optimizers.SGD(0.1)
    network.optimizer.build(network.model.trainable_variables)
    hook = Prune(final_sparsity=0.5)
    hook.build(build_context(network))
    assert hook.summary()["layers"][0]["sparse_bytes"] == csr_bytes(18, 5, 90)  # by its input rows


def test_the_summary_counts_entries_zeros_and_bytes_of_each_layer():
    network = toy_network(optimizer=keras.optimizers.Adam(0.01, use_ema=True))
    hook = Prune(schedule="one_shot", final_sparsity={"hidden": 0.75, "logits": 0.5})
    hooked(network, hook).run(0, 3)
    hidden, logits, total = json.loads(json.dumps(hook.summary()))["layers"]
    assert (hidden["entries"], hidden["kept"], hidden["times_fewer"]) == (48, 12, 4.0)
    assert hidden["sparsity"] == hidden["mask"] == hidden["moving_average"] == 0.75
    assert (hidden["dense_bytes"], hidden["sparse_bytes"]) == (192, math.ceil((12 * (32 + 3) + 32 * 7) / 8))
    assert (total["entries"], total["kept"], total["times_fewer"]) == (72, 24, 3.0)
    assert total["sparse_bytes"] == hidden["sparse_bytes"] + logits["sparse_bytes"]


def test_zeros_are_counted_in_the_weights_and_stored_in_the_smaller_way():
    network = toy_network()
    hook = Prune(layers="hidden", schedule="one_shot", final_sparsity=0.5)
    hooked(network, hook).run(0, 1)
    kernel = network.variables["toy/hidden/kernel"]
    kernel.assign(np.where(kernel.numpy() == 0, 1e-30, kernel.numpy()))  # as an optimizer that leaks would
    row, _ = hook.summary()["layers"]  # and the network's
    assert (row["sparsity"], row["mask"], row["times_fewer"]) == (0.0, 0.5, 1.0)
    hook = Prune(schedule="one_shot", final_sparsity={"hidden": 0.9, "logits": 0.0})
    hooked(network, hook).run(0, 1)
    bits = hook.shipped_bits(values_of(network)).stored
    assert bits["toy/hidden/kernel"] == pytest.approx(8 * csr_bytes(6, 8, 5) / 48)
    assert bits["toy/logits/kernel"] == 32.0  # dense, which is smaller


# Dynamic network surgery: latent entries live on behind the mask, and come back until the masks are final.

HIDDEN = KERNELS[0]


class Watch(GraphHook):
    """Record what the forward pass used and which gradients came back."""

    after = ("prune",)
    name = "watch"

    def build(self, context) -> None:
        shape = context.network.variables[HIDDEN].shape
        self.seen = {name: tf.Variable(tf.zeros(shape)) for name in ("weight", "gradient")}

    def declare(self) -> Declaration:
        return Declaration(self.seen)

    def update_ops(self, context) -> list:
        weight, gradient = context.weights[HIDDEN], context.gradients[HIDDEN]
        return [self.seen["weight"].assign(weight), self.seen["gradient"].assign(gradient)]


def make_splicing(**options):
    hook, watch = Prune(schedule="splicing", **options), Watch()
    network = toy_network(optimizer=keras.optimizers.SGD(0.5, momentum=0.9))
    return hook, watch, network, hooked(network, hook, watch)


def mask_of(hook: Prune) -> np.ndarray:
    return hook.declare().state[f"mask/{HIDDEN}"].numpy()


def test_splicing_sees_zeros_and_every_latent_entry_gets_a_gradient():
    options = {"final_sparsity": 0.75, "initial_sparsity": 0.75, "end_epoch": 20.0, "layers": "hidden"}
    hook, watch, network, loop = make_splicing(**options)
    loop.run(0, 5)
    mask, values = mask_of(hook), values_of(network)
    latent = values[HIDDEN]
    assert (~mask).sum() == 36
    loop.run(5, 1)
    gradient = watch.seen["gradient"].numpy()
    np.testing.assert_array_equal(watch.seen["weight"].numpy(), np.where(mask, latent, 0.0))
    assert (gradient[~mask] != 0).all()
    assert (latent[~mask] != 0).all()
    assert (values_of(network)[HIDDEN][~mask] != latent[~mask]).all()
    twin = toy_network()  # a dense network that holds the masked weights has the same gradient
    for name, variable in twin.variables.items():
        of_hook = hook.declare().state.get(f"mask/{name}")
        variable.assign(values[name] if of_hook is None else np.where(of_hook.numpy(), values[name], 0.0))
    plain = Watch()
    hooked(twin, plain).run(5, 1)
    np.testing.assert_allclose(gradient, plain.seen["gradient"].numpy(), rtol=1e-5, atol=1e-7)


def test_entries_come_back_before_the_end_and_none_after_it():
    hook, watch, network, loop = make_splicing(final_sparsity=0.75, initial_sparsity=0.75, end_epoch=15.0, frequency=2)
    assert hook.declare().best_from_step == 60
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
