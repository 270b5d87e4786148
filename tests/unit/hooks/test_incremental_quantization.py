"""Share by share, weights become powers of two and never move again, while the others train on."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.freeze_layers import FreezeLayers
from hooks.frozen_mask import FrozenMask
from hooks.incremental_quantization import IncrementalQuantization
from hooks.prune import Prune
from tests.support.power_of_two_oracle import paper_exponents, paper_rounding
from tests.support.toy import StatelessHook, ToyObjective, build_context, toy_batch, toy_loop, toy_network, values_of
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.order import order_hooks
from trainer.step.context import BuildContext
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

KERNELS = ("toy/hidden/kernel", "toy/logits/kernel")
OPTIMIZERS = {
    "momentum": lambda **options: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01, **options),
    "adam": lambda **options: keras.optimizers.Adam(0.02, **options),
    "adamw": lambda **options: keras.optimizers.AdamW(0.02, weight_decay=0.1, **options),
    "lion": lambda **options: keras.optimizers.Lion(0.01, weight_decay=0.1, **options),
    "rmsprop": lambda **options: keras.optimizers.RMSprop(0.01, momentum=0.9, **options),
}


def named(name: str = "incremental_quantization", **options: Any) -> IncrementalQuantization:
    hook = IncrementalQuantization(**{"step_epochs": 2, **options})  # due at steps 0, 8, 16, 24
    hook.name = name
    return hook


def keeper() -> FrozenMask:
    hook = FrozenMask(masks="hook", hook="incremental_quantization")
    hook.name = "frozen_mask"
    return hook


def kernels_of(network: Network) -> dict[str, np.ndarray]:
    return {name: np.array(network.variables[name].value) for name in KERNELS}


def masks_of(hook: IncrementalQuantization) -> dict[str, np.ndarray]:
    return {name: np.array(hook.state()[f"mask/{name}"]) for name in KERNELS}


def exponents_of(hook: IncrementalQuantization) -> dict[str, list[int]]:
    return {name: hook.state()[f"exponents/{name}"].numpy().tolist() for name in KERNELS}


def paper_levels(values: np.ndarray, first: int, last: int) -> np.ndarray:
    return np.vectorize(lambda value: paper_rounding(float(value), first, last))(values).astype(np.float32)


def build_all(hooks: list[GraphHook], network: Network, total_steps: int = 100) -> list[GraphHook]:
    """Build hooks in their order, each with the states of those before it."""
    states: dict[str, tf.Variable] = {}
    for hook in order_hooks(hooks):
        hook.build(BuildContext(network, total_steps, 4.0, 16, 0, dict(states)))
        states |= {f"{hook.name}/{name}": variable for name, variable in hook.state().items()}
    return order_hooks(hooks)


def loop_of(hooks: list[GraphHook], network: Network, *, total_steps: int = 100, xla: bool = False) -> ChunkLoop:
    built = build_all(hooks, network, total_steps)
    return ChunkLoop(Trainer([network], [ToyObjective()], built, seed=0), toy_batch, xla=xla)


@pytest.mark.parametrize("with_keeper", [False, True], ids=["alone", "frozen_mask"])
@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_a_run_does_what_a_numpy_oracle_of_the_paper_says(xla: bool, with_keeper: bool):
    network, hook = toy_network(optimizer=OPTIMIZERS["momentum"]()), named()
    loop = loop_of([hook, *([keeper()] if with_keeper else [])], network, xla=xla)
    start = kernels_of(network)
    levels = {name: paper_exponents(float(np.abs(value).max()), 5) for name, value in start.items()}
    masks = {name: np.ones(value.shape, bool) for name, value in start.items()}
    for step in range(30):
        before = kernels_of(network)
        loop.run(step, 1)
        after = kernels_of(network)
        share = {0: 0.5, 8: 0.75, 16: 0.875, 24: 1.0}.get(step)
        for name in KERNELS:
            if share is not None:
                ranked = np.where(masks[name], np.abs(before[name]), np.inf).ravel()
                chosen = np.argsort(-ranked, kind="stable")[: round(share * ranked.size)]
                masks[name].ravel()[chosen] = False
            quantized = ~masks[name]
            expected = paper_levels(before[name], *levels[name])
            assert after[name][quantized].tobytes() == expected[quantized].tobytes()
            if masks[name].any():
                assert np.mean(after[name][masks[name]] != before[name][masks[name]]) > 0.9
            np.testing.assert_array_equal(masks_of(hook)[name], masks[name])
            assert exponents_of(hook)[name] == list(levels[name])
    assert not any(mask.any() for mask in masks.values())


@pytest.mark.parametrize("average", [{}, {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}])
@pytest.mark.parametrize("with_keeper", [False, True], ids=["alone", "frozen_mask"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_quantized_entries_never_move_again_and_the_others_train(optimizer: str, with_keeper: bool, average: dict):
    built = OPTIMIZERS[optimizer](global_clipnorm=1.0, **average)
    network, hook = toy_network(optimizer=built, regularizer=0.05), named(begin_epoch=1)  # due at steps 4, 12, 20, 28
    loop = loop_of([hook, *([keeper()] if with_keeper else [])], network)
    loop.run(0, 5)
    for step, share in ((5, 0.5), (13, 0.75), (21, 0.875), (29, 1.0)):
        masks, before = masks_of(hook), kernels_of(network)
        loop.run(step, 7)
        after = kernels_of(network)
        for name in KERNELS:
            frozen = ~masks[name]
            assert frozen.mean() == pytest.approx(share, abs=0.03)
            assert after[name][frozen].tobytes() == before[name][frozen].tobytes()
            assert np.all(after[name] != before[name], where=masks[name])
        loop.run(step + 7, 1)
    built.finalize_variable_values(list(network.trainable_variables.values()))  # the average replaces the weights
    for name, value in kernels_of(network).items():
        assert value.tobytes() == after[name].tobytes()


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize("criterion", ["magnitude", "random"])
def test_in_the_end_every_weight_is_zero_or_a_power_of_two_within_the_levels(bits: int, criterion: str):
    network, hook = toy_network(optimizer=OPTIMIZERS["adam"]()), named(bits=bits, criterion=criterion)
    loop = loop_of([hook], network)
    start = kernels_of(network)
    loop.run(0, 25)
    for name, value in kernels_of(network).items():
        first, last = exponents_of(hook)[name]
        assert (first, last) == paper_exponents(float(np.abs(start[name]).max()), bits)
        magnitudes = np.abs(value[value != 0])
        exponents = np.log2(magnitudes.astype(np.float64))
        assert np.all(exponents == np.round(exponents))
        assert exponents.min() >= last
        assert exponents.max() <= first
    assert hook.summary()["on_levels"]
    assert hook.stored_bits(kernels_of(network)) == dict.fromkeys(KERNELS, float(bits))


@pytest.mark.parametrize("begin_epoch", [1, 2.5], ids=["before_the_end", "at_the_end"])
def test_a_run_ends_fully_quantized_even_if_the_last_share_falls_on_its_end(begin_epoch: float):
    network, hook = toy_network(), named(begin_epoch=begin_epoch, step_epochs=0.5)
    loop = loop_of([hook], network, total_steps=16)
    loop.run(0, 15)
    done = begin_epoch == 1
    assert all(mask.any() != done for mask in masks_of(hook).values())
    assert bool(hook.stored_bits(kernels_of(network))) == done
    loop.run(15, 1)
    assert not any(mask.any() for mask in masks_of(hook).values())
    for name, value in kernels_of(network).items():
        np.testing.assert_array_equal(value, paper_levels(value, *exponents_of(hook)[name]))
    assert hook.settled_at() == (11 if done else 16)


def test_the_random_choice_is_a_function_of_the_seed_and_not_of_the_magnitude():
    def masks() -> dict[str, np.ndarray]:
        keras.utils.set_random_seed(1)
        network, hook = toy_network(), named(criterion="random")
        loop_of([hook], network).run(0, 1)
        return masks_of(hook)

    first, second = masks(), masks()
    by_size = named()
    keras.utils.set_random_seed(1)
    loop_of([by_size], toy_network()).run(0, 1)
    for name in KERNELS:
        np.testing.assert_array_equal(first[name], second[name])
        assert not np.array_equal(first[name], masks_of(by_size)[name])
        assert (~first[name]).mean() == 0.5


def test_no_gradient_reaches_quantized_entries():
    class Probe(StatelessHook):
        priority = 100

        def measure(self, context):
            mask = hook.state()[f"mask/{KERNELS[0]}"]
            gradient = tf.abs(context.gradients[KERNELS[0]])
            return {"quantized": tf.reduce_max(tf.where(mask, 0.0, gradient)), "left": tf.reduce_max(gradient)}

    hook, network = named(), toy_network(regularizer=0.05)
    loop = loop_of([hook, Probe()], network)
    loop.run(0, 1)
    loop.accumulators.reset()
    loop.run(1, 6)
    values = loop.accumulators.read()
    assert values["quantized"] == 0.0
    assert values["left"] > 1e-4


def test_a_step_of_the_plan_that_was_held_back_is_made_up_for():
    network, hook = toy_network(), named()
    loop = loop_of([hook], network)
    loop.run(0, 7)
    loop.run(10, 1)  # step 8 never came
    assert all((~mask).mean() == 0.75 for mask in masks_of(hook).values())


def test_ties_and_zeros_are_quantized_in_exact_shares():
    network, hook = toy_network(optimizer=keras.optimizers.SGD(0.0)), named()
    network.variables[KERNELS[0]].assign(np.zeros((6, 8)))
    network.variables[KERNELS[1]].assign(np.full((8, 3), -0.3))
    loop = loop_of([hook], network)
    loop.run(0, 1)
    assert [(~mask).mean() for mask in masks_of(hook).values()] == [0.5, 0.5]
    loop.run(1, 24)
    assert exponents_of(hook) == {KERNELS[0]: [0, -7], KERNELS[1]: [-2, -9]}
    np.testing.assert_array_equal(network.variables[KERNELS[0]].numpy(), np.zeros((6, 8)))
    np.testing.assert_array_equal(network.variables[KERNELS[1]].numpy(), np.full((8, 3), -0.25))


def test_only_the_chosen_kernels_are_quantized_and_biases_and_batch_norm_train():
    network, hook = toy_network(), named(layers="logits", shares=[1.0])
    loop = loop_of([hook], network)
    start = values_of(network)
    loop.run(0, 3)
    assert hook.projected() == {KERNELS[1]}
    assert set(hook.state()) == {f"mask/{KERNELS[1]}", f"exponents/{KERNELS[1]}", "updates"}
    after = values_of(network)
    for name in network.trainable_variables.keys() - {KERNELS[1]}:
        assert np.any(after[name] != start[name]), name


def test_measures_and_summary_tell_how_far_it_is():
    network, hook = toy_network(), named()
    loop = loop_of([hook], network)
    assert hook.summary()["kernels"][KERNELS[0]] == {
        "n1": None,
        "n2": None,
        "share": 0.0,
        "on_levels": True,
        "zeros": 0.0,
    }
    loop.run(0, 8)
    values = loop.accumulators.read()
    prefix = "incremental_quantization/share"
    assert [values[key] for key in (prefix, f"{prefix}/hidden", f"{prefix}/logits")] == [0.5, 0.5, 0.5]
    summary = hook.summary()
    assert summary["bits"] == 5
    assert summary["steps"] == [0, 8, 16, 24]
    assert summary["kernels"][KERNELS[0]]["n2"] == summary["kernels"][KERNELS[0]]["n1"] - 7
    assert summary["kernels"][KERNELS[0]]["share"] == 0.5
    assert summary["on_levels"]
    network.variables[KERNELS[0]].assign(np.full((6, 8), 0.3))
    assert not hook.summary()["on_levels"]
    assert hook.stored_bits(kernels_of(network)) == {}


def test_what_is_pruned_stays_zero_and_what_is_frozen_may_be_quantized():
    network = toy_network(optimizer=OPTIMIZERS["adamw"]())
    prune = Prune(schedule="one_shot", final_sparsity=0.5, begin_epoch=1)
    prune.name, prune.priority = "prune", 0  # the declarations decide
    freeze = FreezeLayers(layers="logits")
    freeze.name = "freeze_layers"
    hook = named()
    hooks = [prune, hook, freeze]
    assert [each.name for each in order_hooks(hooks)] == ["freeze_layers", "incremental_quantization", "prune"]
    loop = loop_of(hooks, network)
    loop.run(0, 4)
    half = network.variables[KERNELS[1]].numpy()[~masks_of(hook)[KERNELS[1]]]
    assert np.all(np.abs(half) == np.exp2(np.round(np.log2(np.abs(half)))))
    for step in range(4, 30):
        loop.run(step, 1)
        for name, value in kernels_of(network).items():
            kept = prune.state()[f"mask/{name}"].numpy()
            assert np.all(value[~kept] == 0)
            assert np.mean(value == 0) >= 0.5
    assert hook.summary()["on_levels"]


def test_an_unfinished_plan_goes_on_from_the_saved_state():
    first, hook = toy_network(optimizer=OPTIMIZERS["adam"]()), named()
    loop = loop_of([hook], first)
    loop.run(0, 13)
    saved, state = values_of(first), {name: np.array(each) for name, each in hook.state().items()}
    second, resumed = toy_network(optimizer=OPTIMIZERS["adam"]()), named()
    again = loop_of([resumed], second)
    for name, variable in {**second.variables, **second.optimizer_variables}.items():
        variable.assign(saved.get(name, saved.get(f"optimizer/{name}")))
    for name, variable in resumed.state().items():
        variable.assign(state[name])
    loop.run(13, 14)
    again.run(13, 14)
    for name, value in values_of(first).items():
        assert value.tobytes() == values_of(second)[name].tobytes(), name
    assert hook.summary() == resumed.summary()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": []}, "Invalid layers: \\[\\]. Expected a pattern"),
        ({"shares": [0.5, 0.9]}, "Invalid shares: .* Expected rising shares above 0 that end with 1"),
        ({"begin_epoch": -1}, "Invalid begin_epoch: -1. Expected a number of epochs of at least 0."),
        ({"step_epochs": 0}, "Invalid step_epochs: 0. Expected a number of epochs above 0, or null."),
        ({"bits": 1}, "Invalid bits: 1. Expected a whole number from 2 to 8."),
        ({"bits": 5.0}, "Invalid bits: 5.0. Expected a whole number"),
        ({"criterion": "magnitud"}, "Unknown criterion 'magnitud'. Did you mean 'magnitude'\\?"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict, message: str):
    with pytest.raises(UserError, match=f"^{message}"):
        named(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "norm"}, "The pattern 'norm' matches no kernel layer. .*Expected one of: hidden, logits."),
        ({"begin_epoch": 20}, "The last of 4 shares would be quantized at epoch 26, after the end of the run"),
    ],
)
def test_what_does_not_fit_the_model_or_the_run_is_refused_in_one_line(options: dict, message: str):
    with pytest.raises(UserError, match=f"^{message}"):
        named(**options).build(build_context(toy_network()))


def test_a_kernel_that_does_not_train_is_refused():
    network = toy_network()
    network.model.get_layer("hidden").trainable = False
    with pytest.raises(UserError, match="^The kernel of layer 'hidden' is not trainable, so it cannot be quantized."):
        named().build(build_context(network))


def test_the_audit_sees_every_declared_write():
    network, hook = toy_network(), named()
    loop = toy_loop([hook], network=network)
    (commit,) = loop.trainer.commits
    assert set(commit.hook_writes["incremental_quantization"]) == set(hook.writes()) == set(hook.state())
