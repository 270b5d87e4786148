"""Frozen layers keep every bit, whatever the optimizer does; what is before and behind them trains as it should."""

from __future__ import annotations

from collections.abc import Iterable

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.freeze_layers import FreezeLayers
from tests.support.plan import markdown_of
from tests.support.toy import StatelessHook, build_context, toy_loop, toy_model, toy_network, values_of
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.objective import Objective, ObjectiveOutput
from trainer.order import order_hooks
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

HIDDEN = ["toy/hidden/kernel", "toy/hidden/bias"]
STATISTICS = ["toy/norm/moving_mean", "toy/norm/moving_variance"]
EPOCH = 4  # steps, in a toy run of 100
OPTIMIZERS = {
    "momentum": lambda **options: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01, **options),
    "nesterov": lambda **options: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, **options),
    "adam": lambda **options: keras.optimizers.Adam(0.01, **options),
    "adamw": lambda **options: keras.optimizers.AdamW(0.01, weight_decay=0.1, **options),
    "lion": lambda **options: keras.optimizers.Lion(0.01, weight_decay=0.1, **options),
    "rmsprop": lambda **options: keras.optimizers.RMSprop(0.01, momentum=0.9, **options),
    "adagrad": lambda **options: keras.optimizers.Adagrad(0.1, **options),
    "scaled": lambda **options: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, **options), initial_scale=1.0
    ),
}
AVERAGES = {
    "no_average": {},
    "average": {"use_ema": True, "ema_momentum": 0.9},
    "average_overwrites": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3},
}


def named(name: str = "freeze_layers", **options) -> FreezeLayers:
    hook = FreezeLayers(**{"layers": "hidden", **options})
    hook.name = name
    return hook


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name for name in before if before[name].tobytes() != after[name].tobytes()}


def latent_moved(network: Network, before: dict[str, np.ndarray]) -> set[str]:
    return moved(before, values_of(network)) & network.trainable_variables.keys()


def steps_that_move(loop: ChunkLoop, network: Network, names: Iterable[str], count: int) -> dict[str, list[int]]:
    steps: dict[str, list[int]] = {name: [] for name in names}
    for step in range(count):
        before = values_of(network)
        loop.run(step, 1)
        changed = moved(before, values_of(network))
        for name in steps.keys() & changed:
            steps[name].append(step)
    return steps


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_nothing_moves_a_frozen_layer_with_a_history_while_the_others_train(optimizer: str, average: str):
    built = OPTIMIZERS[optimizer](**AVERAGES[average])
    inner = getattr(built, "inner_optimizer", built)
    inner.global_clipnorm = 1.0
    network = toy_network(optimizer=built, regularizer=0.05)
    loop = toy_loop([named(begin_epoch=2)], network=network)
    start = values_of(network)
    loop.run(0, 2 * EPOCH)
    frozen = values_of(network)
    assert set(HIDDEN) <= moved(start, frozen), "there must be a history to leak from"
    loop.run(2 * EPOCH, 40)
    assert latent_moved(network, frozen) == network.trainable_variables.keys() - set(HIDDEN)
    built.finalize_variable_values(list(network.trainable_variables.values()))  # a moving average replaces the weights
    assert not set(HIDDEN) & moved(frozen, values_of(network))


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "lion"])
def test_a_layer_frozen_for_the_whole_run_keeps_its_first_values(optimizer: str, average: str):
    network = toy_network(optimizer=OPTIMIZERS[optimizer](**AVERAGES[average]), regularizer=0.05)
    loop = toy_loop([named()], network=network)
    start = values_of(network)
    loop.run(0, 60)
    assert latent_moved(network, start) == network.trainable_variables.keys() - set(HIDDEN)
    network.optimizer.finalize_variable_values(list(network.trainable_variables.values()))
    assert not set(HIDDEN) & moved(start, values_of(network))


def test_the_freeze_of_a_whole_run_costs_neither_gradient_nor_update_and_the_plan_shows_it():
    network, hook, seen = toy_network(), named(), {}

    class Probe(StatelessHook):
        priority = 0  # before the hook: no gradient is computed, not only none applied

        def transform_gradients(self, gradients, context):
            seen.update(gradients)
            return gradients

    loop = toy_loop([hook, Probe()], network=network)
    assert {name for name, gradient in seen.items() if gradient is None} == set(HIDDEN) == hook.frozen()
    assert not set(HIDDEN) & loop.trainer.commits[0].apply_ops.keys()
    assert hook.projected() == set()
    plan = markdown_of(loop)
    assert "| toy/hidden/kernel | (6, 8) | float32 | 192 B | frozen |" in plan
    assert "| toy/logits/kernel | (8, 3) | float32 | 96 B | trainable |" in plan


def test_an_average_is_held_and_the_plan_says_so():
    network = toy_network(optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    loop = toy_loop([named()], network=network)
    assert "| toy/hidden/kernel | (6, 8) | float32 | 192 B | frozen, projected by freeze_layers |" in markdown_of(loop)


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_layers_freeze_and_thaw_at_their_epochs_during_a_fit(xla: bool):
    network = toy_network(optimizer=OPTIMIZERS["adamw"](use_ema=True))
    loop = toy_loop([named(begin_epoch=1.5, end_epoch=3.0)], network=network, xla=xla)
    steps = steps_that_move(loop, network, ["toy/hidden/kernel", "toy/logits/kernel"], 5 * EPOCH)
    assert steps["toy/logits/kernel"] == list(range(20))
    assert steps["toy/hidden/kernel"] == [0, 1, 2, 3, 4, 5, *range(12, 20)]
    assert loop.accumulators.read()["freeze_layers/active"] == pytest.approx(6 / 20)


def test_a_layer_may_be_frozen_first_and_train_later():
    network, hook = toy_network(), named(end_epoch=2)
    loop = toy_loop([hook], network=network)
    assert steps_that_move(loop, network, HIDDEN[:1], 12)["toy/hidden/kernel"] == [8, 9, 10, 11]
    assert hook.frozen() == set()
    assert hook.projected() == set(HIDDEN)


@pytest.mark.parametrize(("optimizer", "initial"), [("momentum", 0.0), ("adagrad", 0.1)])
def test_slots_of_frozen_weights_are_those_of_a_new_optimizer(optimizer: str, initial: float):
    network = toy_network(optimizer=OPTIMIZERS[optimizer]())
    loop = toy_loop([named(begin_epoch=1, end_epoch=3)], network=network)
    (values,) = network.optimizer_slots("toy/hidden/kernel").values()
    loop.run(0, 4)
    assert not np.allclose(values.numpy(), initial)
    for step in range(4, 12):
        loop.run(step, 1)
        np.testing.assert_array_equal(values.numpy(), np.full((6, 8), initial, np.float32))
    loop.run(12, 1)
    assert not np.allclose(values.numpy(), initial)


def test_a_thawed_layer_starts_without_the_momentum_of_before_the_freeze():
    gradient = tf.Variable(tf.zeros([6, 8]))

    class Probe(StatelessHook):
        def measure(self, context):
            gradient.assign(context.gradients["toy/hidden/kernel"])
            return {}

    network = toy_network(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    loop = toy_loop([named(begin_epoch=2, end_epoch=4), Probe()], network=network)
    loop.run(0, 16)
    before = np.array(network.variables["toy/hidden/kernel"].value)
    loop.run(16, 1)
    moves = network.variables["toy/hidden/kernel"].numpy() - before
    assert np.abs(moves).max() > 1e-3
    np.testing.assert_allclose(moves, -0.1 * gradient.numpy(), atol=1e-7)


def test_the_gradient_of_the_input_still_flows_through_a_layer_whose_weights_are_frozen():
    free, frozen = toy_network(), toy_network()
    frozen.model.set_weights(free.model.get_weights())
    toy_loop([], network=free).run(0, 1)
    loop = toy_loop([named(layers=["logits", "norm"])], network=frozen)
    start = values_of(frozen)
    loop.run(0, 1)
    assert latent_moved(frozen, start) == set(HIDDEN)
    np.testing.assert_array_equal(
        frozen.variables["toy/hidden/kernel"].numpy(), free.variables["toy/hidden/kernel"].numpy()
    )


@pytest.mark.parametrize("options", [{}, {"begin_epoch": 1}, {"end_epoch": 10}], ids=["whole", "late", "early"])
def test_nothing_upstream_of_the_frozen_layer_moves(options: dict):
    network = toy_network(optimizer=OPTIMIZERS["adamw"]())
    hook = named(layers="activation", stop="upstream", **options)
    loop = toy_loop([hook], network=network)
    loop.run(0, 4)
    start = values_of(network)
    loop.run(4, 20)
    after = values_of(network)
    assert moved(start, after) & network.variables.keys() == {"toy/logits/kernel", "toy/logits/bias"}
    assert hook.summary()["layers"] == ["hidden", "norm"]


class LinearLoss(Objective):
    name, changes = "objective", ("model",)

    def compute(self, forward, batch):
        """Return the sum of output - y over the outputs, as in the example."""
        outputs = forward("model", batch["inputs"])
        return ObjectiveOutput({"difference": tf.reduce_sum(outputs - batch["targets"], axis=-1)}, {}, outputs)


@pytest.mark.parametrize("stop", ["weights", "upstream"])
def test_in_two_linear_layers_of_ones_the_first_stays_and_the_second_moves(stop: str):
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(3, use_bias=False, kernel_initializer="ones", name="w1"),
            keras.layers.Dense(4, use_bias=False, kernel_initializer="ones", name="w2"),
        ]
    )
    network = Network("model", model, keras.optimizers.SGD(1.0))
    network.optimizer.build(model.trainable_variables)
    x = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    batch = {"inputs": tf.constant(x), "targets": tf.ones([3, 4])}
    hook = named(layers="w1", stop=stop)
    hook.build(build_context(network))
    ChunkLoop(Trainer([network], [LinearLoss()], [hook], seed=0), lambda step: batch, xla=False).run(0, 1)
    w1, w2 = model.get_weights()
    np.testing.assert_array_equal(w1, np.ones((2, 3)))
    np.testing.assert_allclose(w2, 1.0 - np.repeat((x @ np.ones((2, 3))).mean(0)[:, None], 4, axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"layers": "norm"}, []),
        ({"layers": "norm", "batch_norm": "running"}, range(12)),
        ({"layers": "norm", "begin_epoch": 1, "end_epoch": 2}, [0, 1, 2, 3, 8, 9, 10, 11]),
        ({"layers": "norm", "batch_norm": "running", "begin_epoch": 1}, range(12)),
        ({"layers": "hidden"}, range(12)),
    ],
    ids=["frozen", "running", "frozen_for_a_time", "running_for_a_time", "not_chosen"],
)
def test_moving_statistics_are_held_or_go_on(options: dict, steps: Iterable[int]):
    network = toy_network()
    loop = toy_loop([named(**options)], network=network)
    found = steps_that_move(loop, network, [*STATISTICS, "toy/norm/gamma"], 12)
    assert found["toy/norm/moving_mean"] == found["toy/norm/moving_variance"] == list(steps)
    frozen = range(4, 8 if "end_epoch" in options else 12) if "begin_epoch" in options else range(12)
    gamma = set(range(12)) - (set(frozen) if options["layers"] == "norm" else set())
    assert set(found["toy/norm/gamma"]) == gamma


def test_the_random_numbers_of_a_frozen_dropout_layer_go_on():
    network = toy_network(dropout=0.5)
    loop = toy_loop([named(layers=["dropout", "norm"])], network=network)
    seed = "dropout/seed_generator_state"
    assert steps_that_move(loop, network, [seed], 3)[seed] == [0, 1, 2]


def test_inference_makes_a_frozen_batch_norm_normalize_by_its_moving_statistics_in_training():
    hook = named(layers=["hidden", "norm"], batch_norm="inference")
    network = Network("model", hook.rebuild_model(toy_model()), keras.optimizers.SGD(0.1))
    network.optimizer.build(network.model.trainable_variables)
    loop = toy_loop([hook], network=network)
    x = np.random.default_rng(3).normal(3.0, 5.0, size=(16, 6)).astype(np.float32)
    np.testing.assert_array_equal(network.model(x, training=True), network.model(x, training=False))
    assert not np.allclose(toy_model()(x, training=True), toy_model()(x, training=False), atol=1e-2)
    start = values_of(network)
    loop.run(0, 8)
    assert moved(start, values_of(network)) & network.variables.keys() == {"toy/logits/kernel", "toy/logits/bias"}
    assert hook.summary()["statistics_held"] == ["toy/norm/beta", "toy/norm/gamma", *STATISTICS]


class Penalty(StatelessHook):
    """Pull the latent kernel itself, past the weights of the forward pass, and look at what is left of its gradient."""

    def add_losses(self, context):
        return {"pull": tf.reduce_sum(tf.square(context.latent["toy/hidden/kernel"]))}

    def measure(self, context):
        gradient = context.gradients["toy/hidden/kernel"]
        return {"left": tf.constant(0.0) if gradient is None else tf.reduce_max(tf.abs(gradient))}


@pytest.mark.parametrize("options", [{}, {"begin_epoch": 1}], ids=["whole", "late"])
def test_a_penalty_of_another_hook_on_the_latent_weights_gets_no_gradient_either(options: dict):
    network = toy_network()
    loop = toy_loop([named(**options), Penalty()], network=network)
    loop.run(0, 4)
    loop.accumulators.reset()
    start = values_of(network)
    loop.run(4, 8)
    assert loop.accumulators.read()["left"] == 0.0
    assert not set(HIDDEN) & latent_moved(network, start)


def test_two_freezes_of_one_run_do_not_disturb_each_other():
    network = toy_network()
    first, second = named(end_epoch=1), named("thaw_later", layers="logits", end_epoch=2)
    loop = toy_loop([first, second], network=network)
    steps = steps_that_move(loop, network, ["toy/hidden/kernel", "toy/logits/kernel", "toy/norm/gamma"], 10)
    assert steps == {
        "toy/hidden/kernel": list(range(4, 10)),
        "toy/logits/kernel": [8, 9],
        "toy/norm/gamma": list(range(10)),
    }
    values = loop.accumulators.read()
    assert values["freeze_layers/active"] == pytest.approx(0.4)
    assert values["thaw_later/active"] == pytest.approx(0.8)


def test_a_layer_that_holds_layers_stands_for_all_of_them():
    inner = toy_model()
    model = keras.Sequential([keras.Input((6,)), inner, keras.layers.Dense(3, name="head")], name="outer")
    network = Network("model", model, keras.optimizers.SGD(0.1))
    network.optimizer.build(model.trainable_variables)
    loop = toy_loop([named(layers="toy")], network=network)
    start = values_of(network)
    loop.run(0, 4)
    assert moved(start, values_of(network)) & network.variables.keys() == {"outer/head/kernel", "outer/head/bias"}


def test_the_summary_tells_what_is_frozen_and_when():
    network, hook = toy_network(), named(layers=["hidden", "norm"], begin_epoch=1, end_epoch=2.5)
    hook.build(build_context(network))
    assert hook.summary() == {
        "layers": ["hidden", "norm"],
        "weights_frozen": 6 * 8 + 8 + 2 * 8,
        "stop": "weights",
        "batch_norm": "frozen",
        "statistics_held": STATISTICS,
        "begin_step": 4,
        "end_step": 10,
    }


def test_it_comes_before_the_hooks_that_change_weights_on_purpose():
    class Clip(StatelessHook):
        priority = 0

    hooks: list[GraphHook] = [Clip(name) for name in ("bnn_rounding", "frozen_mask", "incremental_quantization")]
    assert order_hooks([*hooks, named()])[0].name == "freeze_layers"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ""}, "Invalid layers: ''. Expected a pattern"),
        ({"stop": "weight"}, "Unknown stop 'weight'. Did you mean 'weights'?"),
        ({"batch_norm": "on"}, "Unknown batch_norm 'on'."),
        ({"begin_epoch": -1}, "Invalid begin_epoch: -1. Expected a number of epochs of at least 0."),
        ({"begin_epoch": 2, "end_epoch": 2}, "end_epoch=2 is not after begin_epoch=2. Expected a later end, or null."),
        ({"end_epoch": "last"}, "Invalid end_epoch: 'last'. Expected a number of epochs of at least 0, or null."),
        ({"batch_norm": "inference", "end_epoch": 1}, "batch_norm=inference holds for a whole run."),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict, message: str):
    with pytest.raises(UserError, match=f"^{message.replace('?', '[?]')}"):
        named(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "hiden"}, "The pattern 'hiden' matches no layer. Did you mean 'hidden'?"),
        ({"layers": "activation"}, "Nothing to freeze: the layers activation have no weights."),
        ({"begin_epoch": 25}, "begin_epoch=25 is not before the end of the run, epoch 25."),
        ({"begin_epoch": 1.1, "end_epoch": 1.2}, "No step lies between begin_epoch=1.1 and end_epoch=1.2."),
    ],
)
def test_what_does_not_fit_the_model_or_the_run_is_refused_in_one_line(options: dict, message: str):
    with pytest.raises(UserError, match=f"^{message.replace('?', '[?]')}"):
        named(**options).build(build_context(toy_network()))


def test_inference_without_a_batch_norm_layer_is_refused():
    with pytest.raises(UserError, match="no batch norm layer is frozen by layers=hidden"):
        named(batch_norm="inference").rebuild_model(toy_model())


def test_freezing_every_weight_for_a_whole_run_is_pointed_out(run_of):
    network, hook = toy_network(), named(layers="*")
    loop = toy_loop([hook], network=network)
    assert hook.advise(run_of(network, 100)) == [
        "every weight of 'model' is frozen: nothing of it trains. Narrow the layers pattern."
    ]
    start = values_of(network)
    loop.run(0, 2)
    assert not moved(start, values_of(network))


@pytest.mark.parametrize(("end", "lines"), [(25.0, 1), (24.0, 0), (None, 0)])
def test_an_end_after_that_of_the_run_is_pointed_out(run_of, end, lines):
    network, hook = toy_network(), named(layers="hidden", end_epoch=end)
    hook.build(build_context(network))  # 100 steps, 4 an epoch
    run = run_of(network, 100)
    run.steps_per_epoch = 4.0
    found = hook.advise(run)
    assert len(found) == lines
    assert all("the layers never train again. Set hooks.freeze_layers.end_epoch below it" in line for line in found)
