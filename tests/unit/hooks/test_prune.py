"""The pruning hook in the traced step: what is pruned is 0 and stays 0, whatever the optimizer does."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hooks.prune import Prune
from tests.support.plan import markdown_of
from tests.support.toy import build_context, toy_loop, toy_network, values_of
from trainer.errors import UserError

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "sgd_with_decay": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.05),
    "adam": lambda: keras.optimizers.Adam(0.02),
    "adamw": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.05),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.9),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "average": lambda: keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8),
    "average_written_back": lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_overwrite_frequency=3),
    "clipped": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
    "loss_scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02)),
}
KERNELS = ("toy/hidden/kernel", "toy/logits/kernel")


def make(network=None, *, xla: bool = False, **options):
    """A built hook, its network and a loop of 100 steps, 4 to the epoch."""
    hook = Prune(**options)
    hook.name = "prune"
    network = network or toy_network()
    return hook, network, toy_loop([hook], network=network, xla=xla)


def masks_of(hook: Prune) -> dict[str, np.ndarray]:
    return {name.removeprefix("mask/"): v.numpy() for name, v in hook.state().items() if name.startswith("mask/")}


@pytest.mark.parametrize(
    ("name", "xla"), [*((name, False) for name in OPTIMIZERS), ("momentum", True), ("average", True)]
)
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


def test_the_final_sparsity_is_reached_where_the_frequency_does_not_divide_the_end():
    hook, _, loop = make(final_sparsity=0.9, end_epoch=10.0, frequency=7, power=1.0)
    assert hook.settled_at() == 40
    loop.run(0, 39)
    assert masks_of(hook)["toy/hidden/kernel"].sum() > 48 - round(0.9 * 48)
    loop.run(39, 1)
    settled = masks_of(hook)
    assert {kernel: int((~mask).sum()) for kernel, mask in settled.items()} == {KERNELS[0]: 43, KERNELS[1]: 22}
    loop.run(40, 60)
    assert all((masks_of(hook)[kernel] == mask).all() for kernel, mask in settled.items())


def test_masks_change_at_due_steps_only():
    hook, _, loop = make(final_sparsity=0.8, begin_epoch=1.0, end_epoch=6.0, frequency=8, power=1.0)
    counts = []
    for step in range(24):
        loop.run(step, 1)
        counts.append(int(masks_of(hook)["toy/hidden/kernel"].sum()))
    changes = [step for step in range(1, 24) if counts[step] != counts[step - 1]]
    assert counts[4] == 48  # the first masks of this schedule prune nothing
    assert changes == [12, 20, 23]
    assert counts[-1] == 48 - round(0.8 * 48)


def test_an_update_that_was_held_back_is_made_up_for():
    hook, _, loop = make(schedule="one_shot", begin_epoch=1.0)
    loop.run(5, 1)
    assert (~masks_of(hook)["toy/hidden/kernel"]).sum() == 24


def test_stages_prune_once_each_and_train_in_between():
    hook, network, loop = make(schedule="iterative", stages=[0.5, {"hidden": 0.75, "logits": 0.5}], stage_epochs=2.0)
    assert hook.settled_at() == 9
    loop.run(0, 8)
    first, values = masks_of(hook), values_of(network)
    assert {kernel: int(mask.sum()) for kernel, mask in first.items()} == {KERNELS[0]: 24, KERNELS[1]: 12}
    loop.run(8, 1)
    second = masks_of(hook)
    assert {kernel: int(mask.sum()) for kernel, mask in second.items()} == {KERNELS[0]: 12, KERNELS[1]: 12}
    magnitude = np.abs(values[KERNELS[0]])
    gone = first[KERNELS[0]] & ~second[KERNELS[0]]
    assert magnitude[second[KERNELS[0]]].min() >= magnitude[gone].max()


def test_constant_sparsity_holds_from_its_begin_to_its_end():
    hook, network, loop = make(schedule="constant", final_sparsity=0.5, begin_epoch=1.0, end_epoch=5.0, frequency=3)
    assert hook.settled_at() == 20
    loop.run(0, 5)
    first = masks_of(hook)
    assert first[KERNELS[0]].sum() == 24
    values = network.variables[KERNELS[0]]
    values.assign(np.where(np.arange(48).reshape(6, 8) % 5 == 0, 0.0, values.numpy()))  # survivors that are 0, too
    loop.run(5, 20)
    assert all((masks_of(hook)[kernel] == mask).all() for kernel, mask in first.items())


def test_sparsities_may_differ_by_layer_and_the_last_pattern_counts():
    hook, _, loop = make(schedule="one_shot", final_sparsity={"*": 0.25, "log*": 0.5})
    loop.run(0, 1)
    assert {kernel: int((~mask).sum()) for kernel, mask in masks_of(hook).items()} == {KERNELS[0]: 12, KERNELS[1]: 12}


def test_global_scope_ranks_all_kernels_together_and_leaves_none_empty():
    network = toy_network()
    network.variables[KERNELS[1]].assign(np.linspace(1e-6, 2e-6, 24).reshape(8, 3))
    hook, _, loop = make(network, schedule="one_shot", final_sparsity=0.5, scope="global")
    loop.run(0, 1)
    masks = masks_of(hook)
    assert sum(int(mask.sum()) for mask in masks.values()) == 36
    assert masks[KERNELS[1]].sum() == 1
    assert masks[KERNELS[1]][-1, -1]


def test_at_sparsity_one_the_largest_entry_stays():
    hook, network, loop = make(schedule="one_shot", final_sparsity=1.0)
    largest = {kernel: np.abs(values_of(network)[kernel]).argmax() for kernel in KERNELS}
    loop.run(0, 5)
    assert {kernel: np.flatnonzero(mask).tolist() for kernel, mask in masks_of(hook).items()} == {
        kernel: [index] for kernel, index in largest.items()
    }


def test_all_zero_kernels_are_pruned_to_the_exact_count():
    network = toy_network()
    network.variables[KERNELS[0]].assign(np.zeros((6, 8)))
    hook, _, loop = make(network, schedule="one_shot", final_sparsity=0.75)
    loop.run(0, 3)
    mask = masks_of(hook)[KERNELS[0]]
    assert mask.ravel().tolist() == [True] * 12 + [False] * 36
    assert (values_of(network)[KERNELS[0]][~mask] == 0).all()


@pytest.mark.parametrize("xla", [False, True])
def test_two_of_four_holds_in_every_group(xla: bool):
    hook, network, loop = make(layers="logits", structure={"n_m": [2, 4]}, end_epoch=5.0, frequency=3, xla=xla)
    loop.run(0, 25)
    (mask,) = masks_of(hook).values()
    assert (mask.reshape(2, 4, 3).sum(axis=1) == 2).all()
    assert (values_of(network)[KERNELS[1]][~mask] == 0).all()


def test_blocks_are_whole():
    hook, _, loop = make(layers="hidden", structure={"block": [3, 2]}, schedule="one_shot", final_sparsity=0.5)
    loop.run(0, 1)
    (mask,) = masks_of(hook).values()
    shares = mask.reshape(2, 3, 4, 2).mean(axis=(1, 3))
    assert sorted(shares.ravel().tolist()) == [0.0] * 4 + [1.0] * 4


@pytest.mark.parametrize("criterion", ["magnitude", "l2"])
def test_the_channels_of_the_smallest_norm_go(criterion: str):
    network = toy_network()
    kernel = values_of(network)[KERNELS[0]]
    norms = np.abs(kernel).sum(axis=0) if criterion == "magnitude" else np.square(kernel).sum(axis=0)
    hook, _, loop = make(
        network, layers="hidden", structure="channel", criterion=criterion, schedule="one_shot", final_sparsity=0.25
    )
    loop.run(0, 1)
    (mask,) = masks_of(hook).values()
    assert sorted(np.flatnonzero(~mask.any(axis=0))) == sorted(np.argsort(norms)[:2])
    assert (mask.all(axis=0) == mask.any(axis=0)).all()


def test_what_is_not_selected_is_left_alone():
    hook, network, loop = make(layers="logits", schedule="one_shot", final_sparsity=0.9)
    loop.run(0, 4)
    assert set(masks_of(hook)) == {KERNELS[1]}
    assert hook.projected() == {KERNELS[1]}
    values = values_of(network)
    assert (values["toy/hidden/kernel"] != 0).all()
    assert (values["toy/hidden/bias"] != 0).all()


def test_the_measures_are_the_shares_of_zeros():
    _, _, loop = make(schedule="one_shot", final_sparsity=0.5)
    loop.run(0, 1)
    loop.accumulators.reset()
    loop.run(1, 3)
    found = {name: value for name, value in loop.accumulators.read().items() if name.startswith("sparsity/")}
    assert found == {"sparsity/total": 0.5, "sparsity/hidden": 0.5, "sparsity/logits": 0.5}


def test_a_second_hook_of_another_name_measures_under_that_name():
    hooks = [Prune(layers=layer, schedule="one_shot") for layer in ("hidden", "logits")]
    hooks[0].name, hooks[1].name = "prune", "prune_last"
    loop = toy_loop(hooks)
    loop.run(0, 1)
    names = {name for name in loop.accumulators.read() if "sparsity" in name}
    parts = ("sparsity/total", "sparsity/network")
    assert names == {
        *parts, "sparsity/hidden", *(f"prune_last/{each}" for each in parts), "prune_last/sparsity/logits",
    }  # fmt: skip


def test_the_state_is_named_and_declared_and_the_plan_shows_what_is_projected():
    hook, _, loop = make()
    assert set(hook.state()) == {f"mask/{kernel}" for kernel in KERNELS} | {"updates"}
    assert hook.writes() == hook.state()
    assert hook.state()[f"mask/{KERNELS[0]}"].dtype == "bool"
    assert "trainable, projected by prune" in markdown_of(loop)
    assert Prune().state() == {}
    assert Prune().summary() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "hiden"}, "The pattern 'hiden' matches no kernel layer. Did you mean 'hidden'?"),
        ({"end_epoch": 26.0}, "end_epoch=26 is after its end, epoch 25, step 100"),
        ({"begin_epoch": 25.0}, "begin_epoch=25 is after its end"),
        ({"initial_sparsity": 0.8}, "The sparsity of layer 'hidden' would fall"),
        ({"final_sparsity": {"hidden": 0.5}}, "final_sparsity gives no sparsity for logits."),
        ({"final_sparsity": {"*": 0.5, "fc1": 0.5}}, "The pattern 'fc1' matches no pruned layer."),
        ({"structure": {"n_m": [2, 4]}}, "needs 4 to divide the inputs, but 'toy/hidden/kernel' has 6"),
        ({"structure": "channel"}, "'logits' is a last layer. Leave it out of `layers`, for example layers=[hidden]."),
        (
            {"schedule": "iterative", "stages": [0.5, 0.2], "stage_epochs": 1.0},
            "The sparsity of layer 'hidden' would fall: 0.5, 0.2.",
        ),
    ],
)
def test_what_does_not_fit_the_network_or_the_run_is_one_clear_line(options, message):
    with pytest.raises(UserError) as error:
        Prune(**options).build(build_context(toy_network()))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_kernel_that_is_not_trainable_is_refused():
    network = toy_network()
    network.model.get_layer("hidden").trainable = False
    with pytest.raises(UserError, match="The kernel of layer 'hidden' is not trainable, so it cannot be pruned"):
        Prune().build(build_context(network))


def test_a_depthwise_kernel_has_no_groups_of_inputs():
    model = keras.Sequential([keras.Input((8, 8, 4)), keras.layers.DepthwiseConv2D(3, name="depthwise")])
    network = toy_network()
    network.model = model
    with pytest.raises(UserError, match="is a depthwise kernel"):
        Prune(structure={"n_m": [2, 4]}).build(build_context(network))
