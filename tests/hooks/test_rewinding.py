"""Rewinding: survivors, statistics and optimizer go back to one early step; a run without it does not."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from hookline.hooks.frozen_mask import FrozenMask
from hookline.hooks.incremental_quantization import IncrementalQuantization
from hookline.hooks.prune import Prune
from hookline.trainer import schedules
from hookline.trainer.errors import UserError
from hookline.trainer.order import order_hooks
from tests.support.hooked import hooked
from tests.support.toy import StatelessHook, build_context, toy_network, values_of

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.05),
    "adam_with_average": lambda: keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8),
    "loss_scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02)),
}
KERNELS = ("toy/hidden/kernel", "toy/logits/kernel")
ONCE = {"schedule": "one_shot", "final_sparsity": 0.5, "begin_epoch": 3.0}  # at step 12 of 100, 4 to the epoch
DRAWN = "seed_generator_state"


def new_network(optimizer=None):
    keras.utils.set_random_seed(0)
    return toy_network(optimizer=optimizer, dropout=0.2)


def make(optimizer=None, hooks=(), **options):
    """A built hook, its network and a loop."""
    kept = {name: options.pop(name) for name in ("xla", "accumulation_steps") if name in options}
    hook, network = Prune(**options), new_network(optimizer)
    return hook, network, hooked(network, hook, *hooks, **kept)


def masks_of(hook):
    return {name: hook.declare().state[f"mask/{name}"].numpy() for name in KERNELS}


def masked(values, masks):
    """Return values with zeros in kernels and in their averages where entries are pruned."""
    projected = {name: masks.get(name) for name in values}
    for name in values:
        if name.endswith("_average"):
            kernel = next((each for each in KERNELS if each.replace("/", "_") in name), None)
            projected[name] = masks.get(kernel)
    return {name: each if projected[name] is None else each * projected[name] for name, each in values.items()}


@pytest.mark.parametrize(("name", "xla"), [(name, name == "momentum") for name in OPTIMIZERS])
def test_survivors_and_all_that_training_moved_go_back(name: str, xla: bool):
    hook, network, loop = make(OPTIMIZERS[name](), xla=xla, rewind_epoch=1.0, **ONCE)
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
    for kernel in KERNELS:  # masks are of the weights that were trained, not of those gone back to
        sizes = np.abs(trained[kernel])
        assert masks[kernel].sum() == sizes.size // 2
        assert sizes[masks[kernel]].min() >= sizes[~masks[kernel]].max()
    for key, value in values.items():
        if DRAWN in key:
            assert (value != early[key]).any()
        else:
            np.testing.assert_array_equal(value, expected[key], err_msg=key)
    assert hook.summary()["rewound_to"] == 4
    loop.run(13, 5)
    assert all((values_of(network)[kernel][~masks[kernel]] == 0).all() for kernel in KERNELS)
    assert (values_of(network)[KERNELS[0]] != expected[KERNELS[0]]).any()


def test_without_it_survivors_keep_what_they_learned():
    hook, network, loop = make(**ONCE)
    loop.run(0, 4)
    early = values_of(network)
    loop.run(4, 9)
    values, masks = values_of(network), masks_of(hook)
    assert "early_step" not in hook.declare().state
    assert all((values[name] != early[name])[masks[name]].all() for name in KERNELS)


def test_every_stage_goes_back_and_a_polynomial_at_its_end_alone():
    options = {"schedule": "iterative", "stages": [0.25, 0.5, 0.75], "begin_epoch": 2.0, "stage_epochs": 1.0}
    hook, network, loop = make(rewind_epoch=0.5, **options)
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
    hook, network, loop = make(rewind_epoch=0.0, final_sparsity=0.5, end_epoch=3.0, frequency=5)
    early = values_of(network)
    for step in range(12):  # masks change in steps 0, 5, 10 and 11
        loop.run(step, 1)
        assert (values_of(network)["toy/logits/bias"] == early["toy/logits/bias"]).all() == (step == 11)


def test_a_step_that_was_held_back_is_made_up_for():
    class HeldBack(StatelessHook):
        def veto(self, context):
            return {"no": (context.step == 4) | (context.step == 12)}

    hook, network, loop = make(hooks=[HeldBack("held_back")], rewind_epoch=1.0, **ONCE)
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


def test_micro_batches_and_frozen_masks_go_back_as_well():
    freeze = FrozenMask(masks="hook", hook="prune")
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    hook, network, loop = make(optimizer, [freeze], accumulation_steps=2, rewind_epoch=1.0, **ONCE)
    loop.run(0, 4)
    early = values_of(network)
    loop.run(4, 9)
    values, masks = values_of(network), masks_of(hook)
    assert (values["toy/norm/moving_mean"] == early["toy/norm/moving_mean"]).all()
    for kernel in KERNELS:
        momentum = next(name for name in values if "momentum" in name and kernel.replace("/", "_") in name)
        for name in (kernel, momentum):
            assert (values[name] == early[name] * masks[kernel]).all()


def test_the_rate_goes_back():
    _, network, loop = make(keras.optimizers.SGD(schedules.cosine(0.1, 100)), rewind_epoch=1.0, **ONCE)
    loop.run(0, 13)
    assert float(network.optimizer.learning_rate) == pytest.approx(0.05 * (1 + np.cos(0.04 * np.pi)))


def test_what_cannot_be_gone_back_to_is_refused():
    for options in (
        {"rewind_epoch": 3.0, **ONCE},
        {"rewind_epoch": 0.0, "schedule": "iterative", "stages": [0.5], "stage_epochs": 1.0},
        {"rewind_epoch": 2.0, "end_epoch": 2.0},
        {"rewind_epoch": -1.0},
    ):
        with pytest.raises(UserError, match="rewind_epoch"):
            Prune(**options).build(build_context(toy_network()))
    hooks = [Prune(rewind_epoch=1.0), IncrementalQuantization()]
    for hook, name in zip(hooks, ("prune", "incremental_quantization"), strict=True):
        hook.name = name
    with pytest.raises(UserError, match="incremental_quantization"):
        order_hooks(hooks)
