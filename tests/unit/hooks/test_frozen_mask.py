"""Where frozen masks come from, from when they hold, what they say of themselves, and how they meet other hooks."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.bnn_rounding import BnnRounding
from hooks.frozen_mask import FrozenMask
from tests.support.masking import KERNELS, Maker, bits, build_hooks, kernels_of, masked_loop, small_network
from tests.support.plan import markdown_of
from tests.support.toy import FEATURES, StatelessHook, toy_batch, toy_network
from trainer.errors import UserError
from trainer.network import Network
from trainer.run.checkpoint import CheckpointStore
from trainer.run.state import assign_variables, read_variables, run_variables
from trainer.step.context import StepContext

SHAPES = {"hidden/kernel": (6, 5), "logits/kernel": (5, 3)}


def frozen_mask(name: str = "frozen_mask", **options) -> FrozenMask:
    hook = FrozenMask(**options)
    hook.name = name
    return hook


def network_of(**options) -> Network:
    return small_network(keras.optimizers.SGD(0.1, momentum=0.9), **options)


def masks_of(hook: FrozenMask) -> dict[str, np.ndarray]:
    return {name.removeprefix("mask/"): variable.numpy() for name, variable in hook.state().items()}


def random_masks(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.random(shape) < 0.5 for name, shape in SHAPES.items()}


def save_masks(folder: Path, masks: dict[str, np.ndarray]) -> str:
    np.savez(folder / "masks.npz", **masks)
    return str(folder / "masks.npz")


def save_run(folder: Path, tensors: dict[str, np.ndarray], *, tags=("last",), network: str = "model") -> str:
    store = CheckpointStore(folder / "run" / "checkpoints")
    store.save(set(tags), 3, {f"network/{network}/{name}": array for name, array in tensors.items()}, {})
    store.wait()
    return str(folder / "run")


def error_of(hook: FrozenMask, *others, network: Network | None = None) -> str:
    with pytest.raises(UserError) as error:
        build_hooks([*others, hook], network or network_of())
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("fraction", "count"), [(0.0, 0), (0.5, 15), (0.25, 8), (0.01, 0), (1.0, 30)], ids=lambda value: str(value)
)
def test_magnitude_masks_exactly_the_smallest_share_of_each_kernel(fraction: float, count: int):
    network = network_of()
    hook = frozen_mask(fraction=fraction)
    build_hooks([hook], network)
    for name, mask in masks_of(hook).items():
        sizes = np.abs(kernels_of(network)[name])
        if name == "hidden/kernel":
            assert np.count_nonzero(~mask) == count
        if 0 < np.count_nonzero(~mask) < mask.size:
            assert sizes[~mask].max() <= sizes[mask].min()


def test_equal_magnitudes_and_kernels_of_zeros_are_masked_in_the_exact_number_too():
    network = network_of()
    network.variables["hidden/kernel"].assign(np.zeros((6, 5)))
    network.variables["logits/kernel"].assign(np.resize([0.5, -0.5], (5, 3)))
    hook = frozen_mask(fraction=0.4)
    build_hooks([hook], network)
    assert [int((~mask).sum()) for mask in masks_of(hook).values()] == [12, 6]


def test_survivors_can_be_frozen_instead():
    network = network_of()
    hook, other = frozen_mask(fraction=0.3), frozen_mask("other", fraction=0.3, freeze="survivors")
    build_hooks([hook, other], network)
    for name, mask in masks_of(hook).items():
        np.testing.assert_array_equal(masks_of(other)[name], ~mask)
    start = kernels_of(network)
    masked_loop([other], network).run(0, 10)
    for name, value in kernels_of(network).items():
        frozen = masks_of(hook)[name]
        np.testing.assert_array_equal(bits(value)[frozen], bits(start[name])[frozen])
        assert np.all(value[~frozen] != start[name][~frozen])


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32], ids=lambda dtype: np.dtype(dtype).name)
def test_a_file_gives_masks_by_variable_name(dtype, tmp_path):
    masks = random_masks()
    hook = frozen_mask(masks="file", path=save_masks(tmp_path, {name: m.astype(dtype) for name, m in masks.items()}))
    build_hooks([hook], network_of())
    for name, mask in masks_of(hook).items():
        np.testing.assert_array_equal(mask, masks[name])


def test_a_file_may_cover_any_trainable_variable_and_only_some_layers(tmp_path):
    path = save_masks(tmp_path, {"logits/bias": np.array([1, 0, 0]), "hidden/kernel": random_masks()["hidden/kernel"]})
    hook = frozen_mask(masks="file", path=path, layers="logits")
    network = network_of()
    loop = masked_loop([hook], network)
    assert hook.projected() == {"logits/bias"}
    loop.run(0, 4)
    moved = np.array(network.variables["logits/bias"].value) != 0
    np.testing.assert_array_equal(moved, [True, False, False])
    assert "Expected one of: hidden, logits." in error_of(frozen_mask(masks="file", path=path, layers="conv"))


@pytest.mark.parametrize("tags", [("last",), ("last", "best")], ids=["last", "best"])
def test_the_zeros_of_a_run_give_masks_and_its_weights_are_not_taken_over(tags, tmp_path):
    masks = random_masks()
    pruned = {name: np.where(mask, 0.7, [-0.0] * mask.shape[1]).astype(np.float32) for name, mask in masks.items()}
    if "best" in tags:
        save_run(tmp_path, {name: np.zeros_like(array) for name, array in pruned.items()})
        store = CheckpointStore(tmp_path / "run" / "checkpoints")
        store.save({"best"}, 5, {f"network/model/{name}": array for name, array in pruned.items()}, {})
        store.wait()
    else:
        save_run(tmp_path, pruned)
    network = network_of()
    before = kernels_of(network)
    hook = frozen_mask(masks="zeros", path=str(tmp_path / "run"))
    build_hooks([hook], network)
    for name, mask in masks_of(hook).items():
        np.testing.assert_array_equal(mask, masks[name])
        np.testing.assert_array_equal(kernels_of(network)[name], before[name])


def test_biases_batch_norm_and_layers_that_do_not_train_have_no_mask():
    network = toy_network()
    hook = frozen_mask()
    build_hooks([hook], network)
    assert hook.projected() == {"toy/hidden/kernel", "toy/logits/kernel"}
    network.model.get_layer("hidden").trainable = False
    again = frozen_mask()
    build_hooks([again], network)
    assert again.projected() == {"toy/logits/kernel"}
    assert "matches no kernel layer" in error_of(frozen_mask(layers="hidden"), network=network)


def test_both_kernels_of_a_separable_convolution_and_those_of_a_nested_model_are_masked():
    inner = keras.Sequential(
        [keras.Input((4, 4, 2)), keras.layers.SeparableConv2D(3, 2, name="separable")], name="inner"
    )
    inputs = keras.Input((4, 4, 2))
    outputs = keras.layers.Dense(3, name="top")(keras.layers.Flatten()(inner(inputs)))
    network = Network("model", keras.Model(inputs, outputs), keras.optimizers.SGD())
    network.optimizer.build(network.model.trainable_variables)
    hook = frozen_mask(layers="inner/*", fraction=0.25)
    build_hooks([hook], network)
    assert {name.rpartition("/")[2] for name in hook.projected()} == {"depthwise_kernel", "pointwise_kernel"}
    row = {"layer": "inner/separable", "entries": 14, "frozen": 4, "share": 4 / 14}
    assert hook.summary()["layers"] == [row]


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_magnitudes_at_the_begin_decide_and_everything_trains_before(xla: bool):
    network = network_of()
    hook = frozen_mask(fraction=0.4, begin_epoch=2.5)  # step 10
    loop = masked_loop([hook], network, xla=xla)
    start = kernels_of(network)
    loop.run(0, 10)
    at_begin = kernels_of(network)
    assert all(np.all(at_begin[name] != start[name]) for name in KERNELS)
    assert all(mask.all() for mask in masks_of(hook).values())
    loop.accumulators.reset()
    loop.run(10, 1)
    assert loop.accumulators.read()["frozen_mask/share"] == pytest.approx(18 / 45)
    loop.run(11, 20)
    for name, mask in masks_of(hook).items():
        sizes = np.abs(at_begin[name])
        assert np.count_nonzero(~mask) == round(0.4 * mask.size)
        assert sizes[~mask].max() <= sizes[mask].min()
        np.testing.assert_array_equal(bits(kernels_of(network)[name])[~mask], bits(at_begin[name])[~mask])
        assert np.all(kernels_of(network)[name][mask] != at_begin[name][mask])
    assert hook.settled_at() == 10
    assert hook.writes().keys() == hook.state().keys()


def test_a_file_with_a_later_begin_freezes_the_values_of_then(tmp_path):
    masks = random_masks()
    network = network_of()
    hook = frozen_mask(masks="file", path=save_masks(tmp_path, masks), begin_epoch=0.5, freeze="survivors")
    loop = masked_loop([hook], network)
    loop.run(0, 2)
    at_begin = kernels_of(network)
    loop.run(2, 8)
    for name, survives in masks.items():
        np.testing.assert_array_equal(kernels_of(network)[name] != at_begin[name], ~survives)


def test_an_evaluation_sees_the_weights_as_they_are():
    network = network_of()
    hook = frozen_mask()
    build_hooks([hook], network)
    latent = {name: tf.convert_to_tensor(v.value) for name, v in network.trainable_variables.items()}
    context = StepContext(tf.constant(0, tf.int64), 0, False, "", network, {}, latent)
    assert hook.transform_weights(latent, context) is latent


def test_a_followed_hook_freezes_entry_by_entry_at_the_values_that_it_gives():
    """Masks grow at steps 3 and 8 and shrink at 14: each entry holds from its freeze to its release."""
    generator = np.random.default_rng(3)
    order = {name: generator.permutation(np.prod(shape)).reshape(shape) for name, shape in SHAPES.items()}
    grown = {step: {name: rank >= count for name, rank in order.items()} for step, count in ((3, 5), (8, 9), (14, 3))}
    network = network_of()
    maker, hook = Maker(grown, value=0.5), frozen_mask(masks="hook", hook="maker")
    loop = masked_loop([hook, maker], network)
    assert hook.state() == hook.writes() == {}
    for step in range(20):
        mask_before = {name: variable.numpy() for name, variable in maker.variables.items()}
        before = kernels_of(network)
        loop.accumulators.reset()
        loop.run(step, 1)
        now = kernels_of(network)
        for name, mask in mask_before.items():
            after = maker.variables[name].numpy()
            np.testing.assert_array_equal(bits(now[name])[~mask], bits(before[name])[~mask])
            assert np.all(now[name][mask & ~after] == 0.5)
            assert np.all(now[name][mask & after] != before[name][mask & after])
            for slot in network.optimizer_slots(name).values():
                assert not slot.numpy()[~after].any()
        share = sum(int((~variable.numpy()).sum()) for variable in maker.variables.values()) / 45
        assert loop.accumulators.read()["frozen_mask/share"] == pytest.approx(share)
    assert hook.summary()["masks"] == "maker"
    assert hook.summary()["layers"][0] == {"layer": "hidden", "entries": 30, "frozen": 3, "share": 0.1}


def test_a_followed_hook_freezes_nothing_before_the_begin():
    masks = random_masks()
    network = network_of()
    loop = masked_loop([Maker({0: masks}), frozen_mask(masks="hook", hook="maker", begin_epoch=1.5)], network)
    loop.run(0, 6)
    at_begin = kernels_of(network)
    assert all(np.all(at_begin[name][~mask] != 0) for name, mask in masks.items())
    assert loop.accumulators.read()["frozen_mask/share"] == 0
    loop.run(6, 10)
    for name, mask in masks.items():
        np.testing.assert_array_equal(kernels_of(network)[name] == at_begin[name], ~mask)
        assert not any(slot.numpy()[~mask].any() for slot in network.optimizer_slots(name).values())


def test_a_followed_hook_comes_first_and_only_matching_layers_are_followed():
    maker, hook = Maker({1: random_masks()}), frozen_mask(masks="hook", hook="maker", layers="logits")
    maker.priority = 99  # what it reads decides
    assert [each.name for each in build_hooks([hook, maker], network_of())] == ["maker", "frozen_mask"]
    assert hook.projected() == {"logits/kernel"}
    message = error_of(frozen_mask(masks="hook", hook="maker", layers="dense"), Maker({1: random_masks()}))
    assert message.startswith("The pattern 'dense' matches no layer with a mask of maker.")


def test_the_moving_average_of_a_followed_entry_is_its_new_value_at_once():
    network = small_network(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))
    masks = random_masks()
    loop = masked_loop([Maker({4: masks}), frozen_mask(masks="hook", hook="maker")], network)
    loop.run(0, 5)
    network.optimizer.finalize_variable_values(network.model.trainable_variables)
    for name, mask in masks.items():
        assert not kernels_of(network)[name][~mask].any()


def test_rounding_and_a_frozen_mask_hold_their_invariants_in_one_step(tmp_path):
    """Latent weights are frozen bit for bit, zeros too; the forward pass uses exactly -1 and +1, zeros as +1."""
    masks = random_masks()
    network = small_network(keras.optimizers.Adam(0.05))
    for name, mask in masks.items():
        values = np.array(network.variables[name].value)
        values[~mask] = np.resize([0.0, -0.0, 0.3, -0.3], values[~mask].shape)
        network.variables[name].assign(values)
    start = kernels_of(network)
    used = {name: tf.Variable(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()}

    class Watch(StatelessHook):
        after = ("bnn_rounding",)

        def update_ops(self, context):
            return [variable.assign(context.weights[name]) for name, variable in used.items()]

    rounding = BnnRounding(all_binary=True, input_quantizer=None)
    rounding.name, rounding.priority = "bnn_rounding", 0  # declarations decide
    frozen = frozen_mask(masks="file", path=save_masks(tmp_path, masks))
    loop = masked_loop([rounding, Watch(), frozen], network)
    assert [hook.name for hook in loop.trainer.hooks] == ["frozen_mask", "bnn_rounding", "probe"]
    for step in range(30):
        before = kernels_of(network)
        loop.run(step, 1)
        for name, mask in masks.items():
            np.testing.assert_array_equal(used[name].numpy(), np.where(before[name] >= 0, 1, -1))
            np.testing.assert_array_equal(bits(kernels_of(network)[name])[~mask], bits(start[name])[~mask])
    for name, mask in masks.items():
        assert np.all(kernels_of(network)[name][mask] != start[name][mask])
    values = loop.accumulators.read()
    assert values["bnn/flip_ratio"] > 0
    assert values["frozen_mask/share"] == pytest.approx(sum((~mask).sum() for mask in masks.values()) / 45)
    plan = markdown_of(loop)
    assert "| transform_weights | frozen_mask, bnn_rounding |" in plan
    assert "| project | frozen_mask, bnn_rounding |" in plan


def test_the_plan_says_what_is_projected_and_which_masks_are_written():
    network = network_of()
    loop = masked_loop([frozen_mask(begin_epoch=1.0)], network)
    plan = markdown_of(loop)
    assert "| hidden/kernel | (6, 5) | float32 | 120 B | trainable, projected by frozen_mask |" in plan
    assert "frozen_mask/mask/hidden/kernel" in plan


def test_masks_are_in_what_a_checkpoint_holds_and_a_resumed_run_goes_on_with_them():
    def made():
        network = network_of()
        hook = frozen_mask(begin_epoch=1.0)
        return network, hook, masked_loop([hook], network)

    network, hook, loop = made()
    variables = run_variables([network], [hook], loop.accumulators.variable)
    assert {"hook/frozen_mask/mask/hidden/kernel", "hook/frozen_mask/mask/logits/kernel"} <= variables.keys()
    loop.run(0, 7)
    saved = read_variables(variables)
    loop.run(7, 5)

    resumed, its_hook, its_loop = made()
    assign_variables(run_variables([resumed], [its_hook], its_loop.accumulators.variable), saved, "the checkpoint")
    its_loop.run(7, 5)
    for name, value in kernels_of(network).items():
        np.testing.assert_array_equal(bits(kernels_of(resumed)[name]), bits(value))


def test_the_summary_counts_frozen_entries_per_layer_and_is_json():
    assert frozen_mask().summary() == {}
    hook = frozen_mask(fraction=0.6, freeze="survivors")
    build_hooks([hook], network_of())
    summary = hook.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary == {
        "masks": "magnitude",
        "freeze": "survivors",
        "begin_step": 0,
        "share": 18 / 45,
        "layers": [
            {"layer": "hidden", "entries": 30, "frozen": 12, "share": 0.4},
            {"layer": "logits", "entries": 15, "frozen": 6, "share": 0.4},
        ],
    }


def test_a_held_back_step_changes_no_mask():
    """A veto in the step of the begin: neither the masks nor the weights are written."""

    class Veto(StatelessHook):
        def veto(self, context):
            return {"probe": tf.equal(context.step, 4)}

    network = network_of()
    hook = frozen_mask(begin_epoch=1.0)
    loop = masked_loop([hook, Veto()], network)
    loop.run(0, 4)
    before = kernels_of(network)
    assert loop.run(4, 3) == (4, ["probe"])
    assert all(mask.all() for mask in masks_of(hook).values())
    assert all(np.array_equal(kernels_of(network)[name], before[name]) for name in KERNELS)


def test_seed_example_the_first_layers_weights_stay_and_the_seconds_move():
    """A frozen first layer of two linear ones, by the hook with everything masked."""
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(4, use_bias=False, kernel_initializer="ones", name="first")(inputs)
    outputs = keras.layers.Dense(3, use_bias=False, kernel_initializer="ones", name="second")(hidden)
    network = Network("model", keras.Model(inputs, outputs), keras.optimizers.SGD(1.0, momentum=0.9, weight_decay=0.1))
    network.optimizer.build(network.model.trainable_variables)
    loop = masked_loop([frozen_mask(layers="first", fraction=1.0)], network, batch=toy_batch)
    loop.run(0, 3)
    np.testing.assert_array_equal(network.variables["first/kernel"].numpy(), np.ones((FEATURES, 4)))
    assert np.all(network.variables["second/kernel"].numpy() != 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masks": "magnitudes"}, "Unknown masks 'magnitudes'. Did you mean 'magnitude'?"),
        ({"masks": None}, "Unknown masks 'None'"),
        ({"freeze": "survivor"}, "Did you mean 'survivors'?"),
        ({"fraction": 1.5}, "Invalid fraction: 1.5. Expected the share of each kernel to mask, in [0, 1]"),
        ({"fraction": -0.1}, "Invalid fraction: -0.1"),
        ({"fraction": "half"}, "Invalid fraction: 'half'"),
        ({"fraction": True}, "Invalid fraction: True"),
        ({"begin_epoch": -1}, "Invalid begin_epoch: -1. Expected a number of epochs of 0 or more"),
        ({"begin_epoch": float("nan")}, "Invalid begin_epoch: nan"),
        ({"layers": []}, "Invalid layers"),
        ({"masks": "file"}, "masks=file needs path=..."),
        ({"masks": "zeros", "path": ""}, "masks=zeros needs path=..."),
        ({"masks": "hook"}, "masks=hook needs hook=..."),
        ({"path": "x.npz"}, "path=x.npz has no effect with masks=magnitude. Expected masks=file or zeros."),
        ({"hook": "prune"}, "hook=prune has no effect with masks=magnitude. Expected masks=hook."),
        ({"masks": "hook", "hook": "prune", "freeze": "survivors"}, "freeze=survivors cannot follow the hook 'prune'"),
    ],
    ids=str,
)
def test_a_wrong_option_is_one_clear_line(options, message):
    with pytest.raises(UserError) as error:
        FrozenMask(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_begin_after_the_end_is_one_clear_line():
    message = error_of(frozen_mask(begin_epoch=250.0))
    assert message == ("begin_epoch=250.0 is step 1000, but the run ends after 1000 steps. Expected an earlier begin.")


def test_a_pattern_that_matches_nothing_is_one_clear_line():
    message = error_of(frozen_mask(layers="hiden"))
    assert message.startswith("The pattern 'hiden' matches no kernel layer. Did you mean 'hidden'?")


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"hidden/kernel": np.ones((5, 6))}, "has the shape [5, 6]. Expected [6, 5], the shape of the variable."),
        ({"hidden/kernel": np.full((6, 5), 0.5)}, "holds other values than 0 and 1. Expected 1 for what survives."),
        ({"hidden/kernal": np.ones((6, 5))}, "'hidden/kernal'. Did you mean 'hidden/kernel'?"),
        ({"hidden/kernel": np.full((6, 5), None)}, "cannot be read"),
        ({}, "matches no layer with a mask in"),
    ],
    ids=["shape", "values", "name", "pickle", "empty"],
)
def test_a_wrong_mask_file_is_one_clear_line(masks, message, tmp_path):
    assert message in error_of(frozen_mask(masks="file", path=save_masks(tmp_path, masks)))


def test_a_mask_file_that_is_none_is_one_clear_line(tmp_path):
    missing = str(tmp_path / "no.npz")
    assert f"The mask file {missing} does not exist." in error_of(frozen_mask(masks="file", path=missing))
    (tmp_path / "text.npz").write_text("PK but no archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("text.npz", "empty.npz"):
        assert "cannot be read" in error_of(frozen_mask(masks="file", path=str(tmp_path / name)))
    assert "cannot be read" in error_of(frozen_mask(masks="file", path=str(tmp_path)))
    np.save(tmp_path / "one.npy", np.ones(3))
    header = (tmp_path / "one.npy").read_bytes().replace(b"(3,)", b"(3,(")
    (tmp_path / "header.npy").write_bytes(header)
    assert "cannot be read" in error_of(frozen_mask(masks="file", path=str(tmp_path / "header.npy")))
    assert "one array without a name" in error_of(frozen_mask(masks="file", path=str(tmp_path / "one.npy")))


def test_a_run_that_gives_no_mask_is_one_clear_line(tmp_path):
    whole = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    zeros = {"masks": "zeros"}
    assert "has no checkpoints" in error_of(frozen_mask(**zeros, path=str(tmp_path)))
    path = save_run(tmp_path, whole)
    assert f"No weight in the run {path} is 0" in error_of(frozen_mask(**zeros, path=path))
    path = save_run(tmp_path / "shape", {**whole, "hidden/kernel": np.zeros((6, 4), np.float32)})
    assert "has the shape [6, 4]. Expected [6, 5]" in error_of(frozen_mask(**zeros, path=path))
    path = save_run(tmp_path / "other", {"hidden/kernel": whole["hidden/kernel"], "logit/kernel": np.zeros((5, 3))})
    message = error_of(frozen_mask(**zeros, path=path))
    assert "has no variable 'network/model/logits/kernel'. Did you mean 'network/model/logit/kernel'?" in message


def test_a_hook_that_is_absent_or_offers_other_masks_is_one_clear_line():
    assert "masks of 'prune', but no hook of this run offers the state 'prune/mask/<variable>'" in error_of(
        frozen_mask(masks="hook", hook="prune")
    )
    message = error_of(frozen_mask(masks="hook", hook="makr"), Maker({1: random_masks()}))
    assert "Did you mean 'maker'? Expected one of: maker." in message
    wrong = Maker({1: {"hidden/kernel": np.ones((5, 6), bool)}})
    message = error_of(frozen_mask(masks="hook", hook="maker"), wrong)
    assert message == (
        "The state 'maker/mask/hidden/kernel' is bool of shape [5, 6]. "
        "Expected a bool mask of the shape [6, 5] of the trainable variable 'hidden/kernel'."
    )
    foreign = Maker({1: {"conv/kernel": np.ones((6, 5), bool)}})
    assert "the trainable variable 'conv/kernel'" in error_of(frozen_mask(masks="hook", hook="maker"), foreign)
