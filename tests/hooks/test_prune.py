"""The pruning hook in the traced step: pruned entries are 0 and stay 0, whatever the optimizer does."""

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.incremental_quantization import IncrementalQuantization
from hookline.hooks.prune import Prune
from hookline.hooks.pruning.report import csr_bytes
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration, GraphHook
from hookline.trainer.step.stage import order_hooks
from tests.support.hooked import hooked, named
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, build_context, toy_network, values_of

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.05, global_clipnorm=0.5),
    "average": lambda: keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
}
KERNELS = ("toy/hidden/kernel", "toy/logits/kernel")


def make(network=None, hooks=(), *, xla: bool = False, **options):
    """Return a built hook, its network and a loop of 100 steps, 4 per epoch."""
    hook, network = Prune(**options), network or toy_network()
    return hook, network, hooked(network, hook, *hooks, xla=xla)


def masks_of(hook: Prune) -> dict[str, np.ndarray]:
    state = hook.declare().state
    return {name.removeprefix("mask/"): v.numpy() for name, v in state.items() if name.startswith("mask/")}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pruned_entries_are_exactly_zero_after_every_chunk(name: str):
    network = toy_network(optimizer=OPTIMIZERS[name](), regularizer=0.01)
    # Pruning begins at step 12: momentum of the dense steps would carry entries away from 0.
    options = {"final_sparsity": 0.75, "begin_epoch": 3.0, "end_epoch": 8.0, "frequency": 6}
    hook, network, loop = make(network, xla=name == "average", **options)
    assert hook.declare().best_from_step == 32
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


def test_masks_come_from_the_weights_before_the_step():
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


def test_structure_and_global_scope_hold_in_the_step():
    hook, network, loop = make(layers="logits", structure={"n_m": [2, 4]}, end_epoch=5.0, frequency=3)
    loop.run(0, 25)
    (mask,) = masks_of(hook).values()
    assert (mask.reshape(2, 4, 3).sum(axis=1) == 2).all()
    values = values_of(network)
    assert (values[KERNELS[1]][~mask] == 0).all()
    assert hook.declare().projected == {KERNELS[1]}
    assert (values["toy/hidden/kernel"] != 0).all()
    assert hook.summary()["network"]["kept"] == 6 * 8 + 8 * 3 // 2  # the layer that is not pruned counts, too
    network = toy_network()
    network.variables[KERNELS[1]].assign(np.linspace(1e-6, 2e-6, 24).reshape(8, 3))
    hook, _, loop = make(network, schedule="one_shot", final_sparsity=0.5, scope="global")
    loop.run(0, 1)
    assert [int(mask.sum()) for mask in masks_of(hook).values()] == [35, 1]


def test_options_that_do_not_fit_the_network_or_run_are_refused():
    frozen = toy_network()
    frozen.model.get_layer("hidden").trainable = False
    for options, word, network in (
        ({"layers": "hiden"}, "hiden", None),
        ({"end_epoch": 26.0}, "end_epoch", None),
        ({"initial_sparsity": 0.8}, "would fall from", None),
        ({"final_sparsity": {"hidden": 0.5}}, "logits", None),
        ({"structure": {"n_m": [2, 4]}}, "6 inputs", None),
        ({"structure": "channel"}, "last layer", None),
        ({}, "not trainable", frozen),
    ):
        assert_refused(word, Prune(**options).build, build_context(network or toy_network()))


# The summary: entries, zeros and bytes.


def test_sparse_bytes_are_values_indices_and_row_pointers():
    for columns, bits in ((1, 0), (2, 1), (3, 2), (256, 8), (257, 9)):
        assert csr_bytes(0, columns, 8) == 8 * 4 + bits + 4
    kept = 18_816
    assert csr_bytes(784, 300, kept) == 4 * kept + kept * 9 // 8 + 4 * 785
    assert csr_bytes(5, 2, 0) == 24
    assert csr_bytes(1, 3, 1) == math.ceil((32 + 2 + 64) / 8)


def test_summary_counts_entries_zeros_and_bytes_per_layer():
    network = toy_network(optimizer=keras.optimizers.Adam(0.01, use_ema=True))
    hook = Prune(schedule="one_shot", final_sparsity={"hidden": 0.75, "logits": 0.25})
    hooked(network, hook).run(0, 3)
    bits = hook.shipped_bits(values_of(network)).stored
    assert bits == {KERNELS[0]: pytest.approx(8 * csr_bytes(6, 8, 12) / 48), KERNELS[1]: 32.0}  # dense, if smaller
    hidden, logits, total = json.loads(json.dumps(hook.summary()))["layers"]
    assert (hidden["entries"], hidden["kept"], hidden["times_fewer"]) == (48, 12, 4.0)
    assert hidden["sparsity"] == hidden["mask"] == hidden["moving_average"] == 0.75
    assert (hidden["dense_bytes"], hidden["sparse_bytes"]) == (192, math.ceil((12 * (32 + 3) + 32 * 7) / 8))
    assert (total["entries"], total["kept"], total["times_fewer"]) == (72, 30, 2.4)
    assert total["sparse_bytes"] == hidden["sparse_bytes"] + logits["sparse_bytes"]
    kernel = network.variables["toy/hidden/kernel"]
    kernel.assign(np.where(kernel.numpy() == 0, 1e-30, kernel.numpy()))  # as an optimizer that leaks would
    hidden, *_ = hook.summary()["layers"]
    assert (hidden["sparsity"], hidden["mask"], hidden["times_fewer"]) == (0.0, 0.75, 1.0)


# Dynamic network surgery: latent entries keep training behind the mask and may return until masks are final.

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


def test_splicing_uses_zeros_but_every_latent_entry_gets_a_gradient():
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
    twin = toy_network()  # an equal dense network with the masked weights has the same gradient
    for name, variable in twin.variables.items():
        of_hook = hook.declare().state.get(f"mask/{name}")
        variable.assign(values[name] if of_hook is None else np.where(of_hook.numpy(), values[name], 0.0))
    plain = Watch()
    hooked(twin, plain).run(5, 1)
    np.testing.assert_allclose(gradient, plain.seen["gradient"].numpy(), rtol=1e-5, atol=1e-7)


def test_entries_return_before_the_end_and_never_after_it():
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


# Rewinding: survivors, statistics and optimizer go back to one early step.

ONCE = {"schedule": "one_shot", "final_sparsity": 0.5, "begin_epoch": 3.0}  # at step 12


def drawing(optimizer=None):
    keras.utils.set_random_seed(0)
    return toy_network(optimizer=optimizer, dropout=0.2)


def masked(values, masks):
    """Return values with zeros in kernels and in their averages where entries are pruned."""
    projected = {name: masks.get(name) for name in values}
    for name in values:
        if name.endswith("_average"):
            kernel = next((each for each in KERNELS if each.replace("/", "_") in name), None)
            projected[name] = masks.get(kernel)
    return {name: each if projected[name] is None else each * projected[name] for name, each in values.items()}


@pytest.mark.parametrize("name", ["momentum", "average"])
def test_rewinding_restores_survivors_statistics_and_optimizer(name: str):
    hook, network, loop = make(drawing(OPTIMIZERS[name]()), rewind_epoch=1.0, **ONCE)
    loop.run(0, 4)
    early = values_of(network)
    loop.run(4, 8)
    trained = values_of(network)
    moved = [key for key in early if (trained[key] != early[key]).any()]
    assert {*KERNELS, "toy/logits/bias", "toy/norm/moving_mean"} <= {*moved}
    assert sum(key.startswith("optimizer/") for key in moved) > 4
    loop.run(12, 1)
    masks, values = masks_of(hook), values_of(network)
    expected = masked(early, masks)
    for kernel in KERNELS:  # masks come from the trained weights, not from the rewound ones
        sizes = np.abs(trained[kernel])
        assert masks[kernel].sum() == sizes.size // 2
        assert sizes[masks[kernel]].min() >= sizes[~masks[kernel]].max()
    for key, value in values.items():
        if "seed_generator_state" in key:
            assert (value != early[key]).any()
        else:
            np.testing.assert_array_equal(value, expected[key], err_msg=key)
    assert hook.summary()["rewound_to"] == 4
    loop.run(13, 5)
    assert all((values_of(network)[kernel][~masks[kernel]] == 0).all() for kernel in KERNELS)
    assert (values_of(network)[KERNELS[0]] != expected[KERNELS[0]]).any()


def test_iterative_rewinds_at_every_stage_and_polynomial_only_at_its_end():
    options = {"schedule": "iterative", "stages": [0.25, 0.5, 0.75], "begin_epoch": 2.0, "stage_epochs": 1.0}
    hook, network, loop = make(drawing(), rewind_epoch=0.5, **options)
    loop.run(0, 2)
    early = values_of(network)
    for start, stage in ((2, 8), (9, 12), (13, 16)):
        loop.run(start, stage - start)
        assert (values_of(network)["toy/logits/bias"] != early["toy/logits/bias"]).any()
        loop.run(stage, 1)
        values, masks = values_of(network), masks_of(hook)
        assert all((values[name] == early[name] * masks[name]).all() for name in KERNELS)
        assert (values["toy/logits/bias"] == early["toy/logits/bias"]).all()
    assert (~masks[KERNELS[0]]).sum() == 36
    hook, network, loop = make(drawing(), rewind_epoch=0.0, final_sparsity=0.5, end_epoch=3.0, frequency=5)
    early = values_of(network)
    for step in range(12):  # masks change in steps 0, 5, 10 and 11
        loop.run(step, 1)
        assert (values_of(network)["toy/logits/bias"] == early["toy/logits/bias"]).all() == (step == 11)


def test_vetoed_snapshot_and_rewind_happen_at_the_next_step():
    class HeldBack(StatelessHook):
        def veto(self, context):
            return {"no": (context.step == 4) | (context.step == 12)}

    hook, network, loop = make(drawing(), [HeldBack("held_back")], rewind_epoch=1.0, **ONCE)
    loop.run(0, 4)
    early = values_of(network)
    loop.run(4, 1)
    assert hook.summary()["rewound_to"] is None
    loop.run(5, 7)
    assert hook.summary()["rewound_to"] == 5
    loop.run(12, 1)
    assert (values_of(network)["toy/logits/bias"] != early["toy/logits/bias"]).any()
    loop.run(13, 1)
    assert (values_of(network)["toy/logits/bias"] == early["toy/logits/bias"]).all()


def test_impossible_rewinds_are_refused():
    for options in (
        {"rewind_epoch": 3.0, **ONCE},
        {"rewind_epoch": 0.0, "schedule": "iterative", "stages": [0.5], "stage_epochs": 1.0},
        {"rewind_epoch": 2.0, "end_epoch": 2.0},
        {"rewind_epoch": -1.0},
    ):
        with pytest.raises(UserError, match="rewind_epoch"):
            Prune(**options).build(build_context(toy_network()))
    hooks = [named(Prune(rewind_epoch=1.0)), named(IncrementalQuantization())]
    assert_refused("incremental_quantization", order_hooks, hooks)
