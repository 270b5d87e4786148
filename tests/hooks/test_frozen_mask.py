"""Frozen entries keep their bits under every optimizer; where masks come from and when they take effect."""

from pathlib import Path

import keras
import numpy as np
import pytest

from hookline.hooks.frozen_mask import FrozenMask
from hookline.hooks.options import AVERAGE
from hookline.hooks.prune import Prune
from hookline.trainer.network import Network
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import tensors_digest
from tests.support.hooked import named
from tests.support.masking import KERNELS, Maker, bits, build_hooks, kernels_of, masked_loop, small_network
from tests.support.refusals import assert_refused, refusal
from tests.support.toy import toy_network

SHAPES = {"hidden/kernel": (6, 5), "logits/kernel": (5, 3)}
HISTORY = 5
OPTIMIZERS = {
    "momentum": lambda **more: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **more),
    "adafactor": lambda **more: keras.optimizers.Adafactor(0.05, **more),
    "loss_scale": lambda **more: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, amsgrad=True, **more), initial_scale=8.0
    ),
}
DERIVED_SLOTS = {"_v"}  # Adafactor recomputes it in each step from rows and columns


def frozen_mask(name: str = "frozen_mask", **options) -> FrozenMask:
    return named(FrozenMask(**options), name)


def network_of(**options) -> Network:
    return small_network(keras.optimizers.SGD(0.1, momentum=0.9), **options)


def masks_of(hook: FrozenMask) -> dict[str, np.ndarray]:
    return {name.removeprefix("mask/"): variable.numpy() for name, variable in hook.declare().state.items()}


def random_masks() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    return {name: generator.random(shape) < 0.5 for name, shape in SHAPES.items()}


def of_file(folder: Path, masks: dict[str, np.ndarray] | None = None, **options) -> FrozenMask:
    np.savez(folder / "masks.npz", **(random_masks() if masks is None else masks))
    return frozen_mask(masks="file", path=str(folder / "masks.npz"), **options)


def save_run(folder: Path, tensors: dict[str, np.ndarray], *, tag: str = "last") -> str:
    store = CheckpointStore(folder / "run" / "checkpoints")
    store.save({tag}, 3, {f"network/model/{name}": array for name, array in tensors.items()}, {})
    store.wait()
    return str(folder / "run")


def error_of(hook: FrozenMask) -> str:
    return refusal(build_hooks, [hook], network_of())


def assert_frozen(network: Network, start: dict[str, np.ndarray]) -> None:
    for name, mask in random_masks().items():
        now = np.array(network.variables[name].value)
        assert np.count_nonzero(bits(now)[~mask] != bits(start[name])[~mask]) == 0, name
        assert np.mean(now[mask] != start[name][mask]) > 0.9, f"survivors of {name} must move"
        assert np.isfinite(now).all()


def assert_slots_held(network: Network) -> None:
    for name, mask in random_masks().items():
        for attribute, slot in network.optimizer_slots(name).items():
            values = np.array(slot.value)
            if attribute == AVERAGE:
                np.testing.assert_array_equal(bits(values[~mask]), bits(network.variables[name].numpy()[~mask]))
            elif attribute not in DERIVED_SLOTS:
                assert not values[~mask].any(), f"{attribute} of {name}"
                assert values[mask].any(), f"{attribute} of {name} must be in use"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_frozen_entries_keep_their_bits_and_survivors_move(optimizer: str, tmp_path):
    pulls = {"weight_decay": 0.05, "use_ema": True, "ema_momentum": 0.9, "global_clipnorm": 0.1}
    pulls |= {} if optimizer == "loss_scale" else {"ema_overwrite_frequency": 7}
    network = small_network(OPTIMIZERS[optimizer](**pulls), regularizer=0.05)
    loop = masked_loop([of_file(tmp_path, begin_epoch=HISTORY / 4)], network, xla=optimizer == "momentum")
    free = kernels_of(network)
    loop.run(0, HISTORY)
    assert all(np.mean(now != free[name]) > 0.9 for name, now in kernels_of(network).items())
    for name, mask in random_masks().items():
        values, frozen = np.array(network.variables[name].value), np.flatnonzero(~mask)
        values.flat[frozen[::3]] = np.resize([0.0, -0.0], frozen[::3].shape)
        network.variables[name].assign(values)
    start = kernels_of(network)
    loop.run(HISTORY + (optimizer == "adafactor"), 60)  # as if the step in which freezing begins was skipped
    assert_frozen(network, start)
    assert_slots_held(network)
    network.optimizer.finalize_variable_values(network.model.trainable_variables)
    assert_frozen(network, start)


def test_magnitude_masks_exactly_the_smallest_share_of_each_kernel():
    network = toy_network()
    network.model.get_layer("hidden").trainable = False
    build_hooks([hook := frozen_mask()], network)
    assert hook.declare().projected == {"toy/logits/kernel"}  # no bias, no batch norm, nothing that does not train
    network = network_of()
    for fraction, count in ((0.0, 0), (0.25, 8), (0.01, 0), (1.0, 30)):
        hook, other = frozen_mask(fraction=fraction), frozen_mask("other", fraction=fraction, freeze="survivors")
        build_hooks([hook, other], network)
        assert np.count_nonzero(~masks_of(hook)["hidden/kernel"]) == count
        for name, mask in masks_of(hook).items():
            sizes = np.abs(kernels_of(network)[name])
            assert not mask.any() or mask.all() or sizes[~mask].max() <= sizes[mask].min()
            np.testing.assert_array_equal(masks_of(other)[name], ~mask)


def test_masks_come_from_zeros_in_the_best_or_else_last_weights(tmp_path, run_of):
    masks = random_masks()
    pruned = {name: np.where(mask, 0.7, [-0.0] * mask.shape[1]).astype(np.float32) for name, mask in masks.items()}
    for folder in ("last", "best"):
        if folder == "best":
            save_run(tmp_path / folder, {name: np.zeros_like(array) for name, array in pruned.items()})
        path = save_run(tmp_path / folder, pruned, tag=folder)
        network = network_of()
        before = kernels_of(network)
        build_hooks([hook := frozen_mask(masks="zeros", path=path)], network)
        for name, mask in masks_of(hook).items():
            np.testing.assert_array_equal(mask, masks[name])
            np.testing.assert_array_equal(kernels_of(network)[name], before[name])
        (line,) = hook.advise(run_of(network, 100))
        assert f"Set init_from={path}" in line
        for name, mask in masks.items():
            network.variables[name].assign(mask)
        assert list(hook.advise(run_of(network, 100))) == []
        assert hook.declare().outside == {"path": tensors_digest(masks)}


@pytest.mark.parametrize("first", [10, 11])  # 11: as if step 10 was skipped
def test_masks_use_magnitudes_at_the_begin_and_all_entries_train_before(first: int):
    network = network_of()
    hook = frozen_mask(fraction=0.4, begin_epoch=2.5)  # step 10
    loop = masked_loop([hook], network, xla=True)
    start = kernels_of(network)
    loop.run(0, 10)
    at_begin = kernels_of(network)
    assert all(np.all(at_begin[name] != start[name]) for name in KERNELS)
    assert all(mask.all() for mask in masks_of(hook).values())
    loop.accumulators.reset()
    loop.run(first, 1)
    assert loop.accumulators.read()["frozen_mask/share"] == pytest.approx(18 / 45)
    loop.run(first + 1, 20)
    for name, mask in masks_of(hook).items():
        sizes = np.abs(at_begin[name])
        assert np.count_nonzero(~mask) == round(0.4 * mask.size)
        assert sizes[~mask].max() <= sizes[mask].min()
        np.testing.assert_array_equal(bits(kernels_of(network)[name])[~mask], bits(at_begin[name])[~mask])
        assert np.all(kernels_of(network)[name][mask] != at_begin[name][mask])
    assert hook.declare().best_from_step == 10


def test_entries_of_a_followed_hook_are_frozen_at_its_values():
    """Masks grow at steps 2 and 8 and shrink at 14; an entry is held from freeze to release. Step 3 is skipped."""
    generator = np.random.default_rng(3)
    order = {name: generator.permutation(np.prod(shape)).reshape(shape) for name, shape in SHAPES.items()}
    grown = {step: {name: rank >= count for name, rank in order.items()} for step, count in ((2, 5), (8, 9), (14, 3))}
    network = network_of()
    maker, hook = Maker(grown, value=0.5), frozen_mask(masks="hook", hook="maker", begin_epoch=0.75)
    maker.priority = 99  # what is read decides the order, not the priority
    loop = masked_loop([hook, maker], network)
    assert [each.name for each in loop.trainer.hooks] == ["maker", "frozen_mask"]
    assert hook.declare().state == hook.declare().writes == {}
    loop.run(0, 3)
    for step in range(4, 20):
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
    assert hook.summary()["layers"][0] == {"layer": "hidden", "entries": 30, "frozen": 3, "share": 0.1}


def test_frozen_entries_that_are_pruned_later_become_zero(tmp_path):
    network, prune = network_of(), named(Prune(schedule="one_shot", begin_epoch=1.0, final_sparsity=0.8))
    loop, start = masked_loop([prune, of_file(tmp_path)], network), kernels_of(network)
    loop.run(0, 8)
    for name, mask in random_masks().items():
        now, kept = kernels_of(network)[name], prune.declare().state[f"mask/{name}"].numpy()
        np.testing.assert_array_equal(now != 0, kept)
        np.testing.assert_array_equal(now[kept & ~mask], start[name][kept & ~mask])


def test_invalid_options_are_named_in_the_error():
    for options in ({"masks": "file"}, {"masks": "hook"}, {"masks": "hook", "hook": "prune", "freeze": "survivors"}):
        assert_refused(list(options)[-1], FrozenMask, **options)
    assert "begin_epoch=250" in error_of(frozen_mask(begin_epoch=250.0))
    assert "'hidden'" in error_of(frozen_mask(layers="hiden"))
    hooks = [named(Prune(final_sparsity=0.5)), frozen_mask()]
    assert_refused("hooks.frozen_mask.hook=prune", build_hooks, hooks, network_of())


def test_invalid_mask_file_is_refused(tmp_path):
    for masks, word in (
        ({"hidden/kernel": np.ones((5, 6))}, "[5, 6]"),
        ({"hidden/kernel": np.full((6, 5), 0.5)}, "0 and 1"),
        ({"hidden/kernal": np.ones((6, 5))}, "hidden/kernal"),
        ({"hidden/kernel": np.full((6, 5), None)}, "cannot be read"),  # a pickle
    ):
        assert word in error_of(of_file(tmp_path, masks))
    (tmp_path / "text.npz").write_text("PK but no archive")
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "header.npy").write_bytes((tmp_path / "one.npy").read_bytes().replace(b"(3,)", b"(3,("))
    for name, word in (("no.npz", "put it back"), ("text.npz", "read"), ("header.npy", "read"), ("one.npy", "array")):
        assert word in error_of(frozen_mask(masks="file", path=str(tmp_path / name)))


def test_run_or_hook_without_masks_is_refused(tmp_path):
    whole = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    assert "no checkpoints" in error_of(frozen_mask(masks="zeros", path=str(tmp_path)))
    for folder, tensors, word in (
        ("whole", whole, "is 0"),
        ("shape", {**whole, "hidden/kernel": np.zeros((6, 4), np.float32)}, "[6, 4]"),
        ("other", {"hidden/kernel": whole["hidden/kernel"], "logit/kernel": np.zeros((5, 3))}, "logits/kernel"),
    ):
        assert word in error_of(frozen_mask(masks="zeros", path=save_run(tmp_path / folder, tensors)))
    assert "prune" in error_of(frozen_mask(masks="hook", hook="prune"))
