"""Moving averages of weights and statistics: what they are, who sees them, and what holds for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.bnn_rounding import BnnRounding
from hooks.ema import Ema
from tests.support.command import run_small
from tests.support.masking import bits, build_hooks
from tests.support.toy import BATCH, SIZE, StatelessHook, ToyObjective, build_context, toy_batch, toy_network, values_of
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.run.shipped import shipped_weights
from trainer.run.state import assign_variables, read_variables, run_variables
from trainer.step.evaluate import Evaluator
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

Values = dict[str, np.ndarray]


def named(hook: GraphHook, name: str) -> GraphHook:
    hook.name = name
    return hook


def ema(**options: Any) -> Ema:
    hook = Ema(**{"decay": 0.7, "warm_up": False, **options})
    hook.name = "ema"
    return hook


def loop_with(
    hooks: Sequence[GraphHook],
    network: Network,
    *,
    xla: bool = False,
    objectives: Sequence[ToyObjective] = (),
    accumulation_steps: int = 1,
) -> ChunkLoop:
    built, objectives = build_hooks(hooks, network), list(objectives) or [ToyObjective()]
    trainer = Trainer([network], objectives, built, seed=0, accumulation_steps=accumulation_steps)
    return ChunkLoop(trainer, toy_batch, xla=xla)


def moving_network(**arguments: Any) -> Network:
    """Return the toy network with moving statistics that move fast, and an optimizer with momentum."""
    network = toy_network(optimizer=keras.optimizers.Adam(0.05), **arguments)
    network.model.get_layer("norm").momentum = 0.5
    return network


def weights_of(network: Network) -> Values:
    return {name: variable.numpy() for name, variable in network.weights.items()}


def reader(loop: ChunkLoop) -> Callable[..., Values]:
    """Return what reads the weights and statistics that evaluations use; it is traced once."""
    names = loop.trainer.networks["model"].weights

    @tf.function(autograph=False)
    def read(step: tf.Tensor) -> dict[str, tf.Tensor]:
        forward = loop.trainer.forward(step, {}, objective="", training=False)
        values = {**forward.passes["model"].context.weights, **forward.passes["model"].state}
        return {name: values[name] for name in names}

    return lambda step=0: {name: value.numpy() for name, value in read(tf.constant(step, tf.int64)).items()}


def evaluated(loop: ChunkLoop, step: int = 0) -> Values:
    return shipped_weights(loop.trainer, step)["model"]


def train(loop: ChunkLoop, steps: int, start: int = 0) -> list[Values]:
    """Return the weights and statistics before the first step and after each."""
    network = loop.trainer.networks["model"]
    history = [weights_of(network)]
    for step in range(start, start + steps):
        loop.run(step, 1)
        history.append(weights_of(network))
    return history


def constant(share: float) -> Callable[[int], float]:
    return lambda t: share


def warmed(share: float) -> Callable[[int], float]:
    return lambda t: min(share, (1 + t) / (10 + t))


def conventional(history: Sequence[Values], decay: Callable[[int], float]) -> Values:
    """Return the averages in float64 that are taken after every step, the usual way."""
    average = {name: value.astype(np.float64) for name, value in history[0].items()}
    for t, values in enumerate(history[1:], start=1):
        average = {name: decay(t) * average[name] + (1 - decay(t)) * value for name, value in values.items()}
    return average


def assert_close(found: Values, expected: Values) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=2e-7, err_msg=name)


def assert_same_bits(found: Values, expected: Values) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(bits(found[name]), bits(value), err_msg=name)


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("warm_up", [False, True], ids=["constant", "warm_up"])
def test_an_evaluation_has_the_averages_as_they_are_after_the_step_without_lag(warm_up: bool, xla: bool) -> None:
    network = moving_network(dropout=0.3)
    loop = loop_with([ema(warm_up=warm_up)], network, xla=xla)
    history, read = [weights_of(network)], reader(loop)
    assert_same_bits(read(), history[0])
    decay = warmed(0.7) if warm_up else constant(0.7)
    for step in range(12):
        loop.run(step, 1)
        history.append(weights_of(network))
        assert_close(read(), conventional(history, decay))
    assert_same_bits(evaluated(loop), read())
    late = conventional(history[:-1], decay)  # what the state alone holds: the test tells the two apart
    assert all(np.abs(late[name] - value).max() > 1e-4 for name, value in conventional(history, decay).items())
    assert {name.rpartition("/")[2] for name in late} >= {"kernel", "bias", "gamma", "moving_mean", "moving_variance"}


def test_the_share_of_a_warm_up_rises_to_the_decay() -> None:
    network = moving_network()
    hook = ema(decay=0.25, warm_up=True)
    loop = loop_with([hook], network)
    found = []
    for step in range(5):
        loop.run(step, 1)
        found.append(loop.accumulators.read()["ema/decay"])
        loop.accumulators.reset()
    assert found == pytest.approx([2 / 11, 3 / 12, 0.25, 0.25, 0.25])


def test_chunks_of_any_length_add_every_value_once() -> None:
    states = []
    for chunks in ((6,), (1, 1, 1, 1, 1, 1), (2, 4)):
        keras.utils.set_random_seed(1)
        hook = ema()
        loop, start = loop_with([hook], moving_network(dropout=0.3)), 0
        for steps in chunks:
            loop.run(start, steps)
            start += steps
        assert hook.state()["updates"].numpy() == 6
        states.append({name: variable.numpy() for name, variable in hook.state().items()})
    for state in states[1:]:
        assert_same_bits(state, states[0])


def test_training_is_bit_for_bit_as_without_averages() -> None:
    trained, losses = [], []
    for hooks in ([], [ema()]):
        keras.utils.set_random_seed(1)
        network = moving_network(dropout=0.3)
        loop = loop_with(hooks, network)
        loop.run(0, 8)
        trained.append(values_of(network))
        losses.append(loop.accumulators.read()["loss/total"])
    assert_same_bits(trained[1], trained[0])
    assert losses[0] == losses[1]


def evaluation(loop: ChunkLoop, step: int = 0) -> dict[str, float]:
    return Evaluator(loop.trainer, toy_batch, SIZE // BATCH).run(step)


def test_evaluations_compute_with_averaged_weights_and_averaged_statistics() -> None:
    network = moving_network(dropout=0.3)
    loop = loop_with([ema()], network)
    averages = conventional(train(loop, 6), constant(0.7))
    found = evaluation(loop)
    for name, variable in network.weights.items():
        variable.assign(averages[name])
    plain = ChunkLoop(Trainer([network], [ToyObjective()], [], seed=0), toy_batch, xla=False)
    assert found == pytest.approx(evaluation(plain), rel=1e-5)
    for variable in network.state_variables.values():
        variable.assign(tf.ones(variable.shape, variable.dtype))
    assert found != pytest.approx(evaluation(plain), rel=1e-3), "statistics matter here"


def test_seed_state_is_neither_averaged_nor_changed() -> None:
    network = moving_network(dropout=0.3)
    hook = ema()
    loop = loop_with([hook], network)
    (seed,) = network.variables.keys() - network.weights.keys()
    floats = {f"average/{name}" for name in network.weights}
    assert hook.state().keys() == {*floats, "updates"}
    loop.run(0, 4)
    before = network.variables[seed].numpy()
    forward = loop.trainer.forward(tf.constant(4, tf.int64), {}, objective="", training=False)
    np.testing.assert_array_equal(forward.passes["model"].state[seed], before)
    assert forward.passes["model"].state[seed].dtype == network.variables[seed].dtype


def test_values_that_never_move_keep_their_bits() -> None:
    odd = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32) ** 5
    odd[0, :3] = (-0.0, 1e-41, 3e38)
    network = moving_network()
    network.model.get_layer("hidden").trainable = False
    network.optimizer = keras.optimizers.SGD(0.1)
    network.optimizer.build(network.model.trainable_variables)
    network.variables["toy/hidden/kernel"].assign(odd)
    before = network.variables["toy/hidden/kernel"].numpy()
    for hook in (ema(decay=0.999, warm_up=True), ema(decay=0.3)):
        loop = loop_with([hook], network)
        loop.run(0, 30)
        np.testing.assert_array_equal(bits(evaluated(loop)["toy/hidden/kernel"]), bits(before))


def test_a_decay_of_zero_is_the_value_of_now() -> None:
    network = moving_network()
    loop = loop_with([ema(decay=0.0)], network)
    loop.run(0, 5)
    assert_same_bits(evaluated(loop), weights_of(network))


def test_until_the_begin_the_averages_are_the_values_of_now() -> None:
    network = moving_network()
    hook = ema(begin_epoch=0.75, warm_up=True)  # 3 steps of 4 an epoch
    loop = loop_with([hook], network)
    history, read = [weights_of(network)], reader(loop)
    for step in range(3):
        loop.run(step, 1)
        history.append(weights_of(network))
        assert_same_bits(read(), history[-1])
        assert hook.state()["updates"].numpy() == 0
    values = loop.accumulators.read()
    assert (values["ema/decay"], values["ema/distance"]) == (0.0, 0.0)
    for step in range(3, 8):
        loop.run(step, 1)
        history.append(weights_of(network))
        assert_close(read(), conventional(history[3:], warmed(0.7)))


def test_what_an_evaluation_has_follows_from_the_state_and_not_from_the_step() -> None:
    network = moving_network()
    loop = loop_with([ema(warm_up=True, begin_epoch=0.5)], network)
    loop.run(0, 5)
    read = reader(loop)
    assert_same_bits(read(0), read(900))  # as the best checkpoint's is after the last step


def test_averages_that_are_only_kept_are_the_same_and_nobody_uses_them() -> None:
    states = []
    for evaluate in (True, False):
        keras.utils.set_random_seed(1)
        network = moving_network()
        hook = ema(evaluate=evaluate)
        loop = loop_with([hook], network)
        loop.run(0, 5)
        states.append({name: variable.numpy() for name, variable in hook.state().items()})
    assert_same_bits(states[1], states[0])
    assert_same_bits(evaluated(loop), weights_of(network))


class Veto(StatelessHook):
    """Hold step 3 back."""

    def veto(self, context):
        return {"step 3": tf.equal(context.step, 3)}


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_a_step_that_is_held_back_adds_nothing(xla: bool) -> None:
    hook = ema()
    loop = loop_with([hook, Veto("veto")], moving_network(), xla=xla)
    assert loop.run(0, 3) == (3, [])
    before = {name: variable.numpy() for name, variable in hook.state().items()}
    assert loop.run(3, 4) == (3, ["step 3"])
    assert_same_bits({name: variable.numpy() for name, variable in hook.state().items()}, before)


def test_every_turn_of_an_objective_is_a_step_and_micro_batches_are_one_together() -> None:
    hook = ema()
    objectives = [ToyObjective(name="first"), ToyObjective(name="second")]
    network = moving_network()
    network.shared = True
    loop_with([hook], network, objectives=objectives).run(0, 3)
    assert hook.state()["updates"].numpy() == 6
    hook = ema()
    loop = loop_with([hook], moving_network(), accumulation_steps=2)
    history = train(loop, 7)
    assert hook.state()["updates"].numpy() == 7
    assert_close(evaluated(loop), conventional(history, constant(0.7)))


def test_the_distance_is_that_of_the_weights_from_what_an_evaluation_has() -> None:
    network = moving_network()
    loop = loop_with([ema(warm_up=True)], network)
    read = reader(loop)
    for step in range(4):
        loop.run(step, 1)
        found = loop.accumulators.read()["ema/distance"]
        loop.accumulators.reset()
        names, averages, now = network.trainable_variables, read(), weights_of(network)
        away = np.sqrt(sum(np.square(now[name] - averages[name], dtype=np.float64).sum() for name in names))
        length = np.sqrt(sum(np.square(now[name], dtype=np.float64).sum() for name in names))
        assert found == pytest.approx(away / length, rel=1e-4)
        assert found > 1e-3


def test_a_run_that_goes_on_from_its_checkpoint_has_the_same_averages() -> None:
    keras.utils.set_random_seed(1)
    network, hook = moving_network(dropout=0.3), ema(warm_up=True)
    loop = loop_with([hook], network)
    variables = run_variables([network], [hook], loop.accumulators.variable)
    assert variables["hook/ema/average/toy/norm/moving_mean"] is hook.state()["average/toy/norm/moving_mean"]
    loop.run(0, 4)
    saved = read_variables(variables)
    loop.run(4, 4)
    expected = evaluated(loop)
    other, other_hook = moving_network(dropout=0.3), ema(warm_up=True)
    again = loop_with([other_hook], other)
    assign_variables(run_variables([other], [other_hook], again.accumulators.variable), saved, "the checkpoint")
    again.run(4, 4)
    assert_same_bits(evaluated(again), expected)


def test_clipped_weights_have_clipped_averages_and_the_signs_of_these_are_used() -> None:
    network = toy_network(optimizer=keras.optimizers.SGD(20.0))
    rounding = named(BnnRounding(input_quantizer=None, all_binary=True, clip=0.3), "bnn_rounding")
    hook = ema(decay=0.8)
    loop = loop_with([rounding, hook], network)
    assert [each.name for each in loop.trainer.hooks] == ["ema", "bnn_rounding"]
    history = train(loop, 40)
    latent = conventional(history, constant(0.8))
    for name in ("toy/hidden/kernel", "toy/logits/kernel"):
        average = hook.state()[f"average/{name}"].numpy()
        assert np.abs(history[-1][name]).max() == np.float32(0.3)
        assert np.abs(average).max() <= np.float32(0.3)
        sure = np.abs(latent[name]) > 1e-5
        signs = np.where(latent[name] >= 0, 0.3, -0.3)
        np.testing.assert_allclose(evaluated(loop)[name][sure], signs[sure], rtol=1e-6)
        assert ((history[-1][name] >= 0) != (latent[name] >= 0)).any(), "averaging matters here"


def test_half_precision_has_averages_in_full() -> None:
    keras.config.set_dtype_policy("bfloat16")
    try:
        network = toy_network(optimizer=keras.optimizers.SGD(0.1))
    finally:
        keras.config.set_dtype_policy("float32")

    class Grow(StatelessHook):
        def project(self, context):
            for variable in context.network.trainable_variables.values():
                variable.value.assign(tf.ones_like(variable.value))

    class HalfObjective(ToyObjective):
        def compute(self, forward, batch):
            return super().compute(forward, {**batch, "inputs": tf.cast(batch["inputs"], tf.bfloat16)})

    for variable in network.trainable_variables.values():
        variable.assign(np.zeros(variable.shape))
    hook = ema(decay=0.999)
    loop = loop_with([hook, Grow("grow")], network, objectives=[HalfObjective()])
    loop.run(0, 1000)
    expected = 1 - 0.999**1000
    average = hook.state()["average/toy/hidden/kernel"]
    assert average.dtype == tf.float32
    np.testing.assert_allclose(average.numpy(), expected, atol=2e-3)  # in bfloat16 it would stop near 0.25
    forward = loop.trainer.forward(tf.constant(1, tf.int64), {}, objective="", training=False)
    weight = forward.passes["model"].context.weights["toy/hidden/kernel"]
    assert weight.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(weight, tf.float32), expected, atol=5e-3)


class Forgetful(Ema):
    """Create the updates, and do not return them."""

    def update_ops(self, context):
        super().update_ops(context)
        return []


class WeightsAlone(Ema):
    """Leave the statistics out."""

    def update_ops(self, context):
        context.state = {name: tf.zeros_like(value) for name, value in context.state.items()}
        kept = [self._averages[name].assign(value) for name, value in self._next(context.latent).items()]
        return [*kept, self._updates.assign_add(1)]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Forgetful, "'ema' writes 'average/toy/hidden/kernel' outside UPDATE_OPS.*Return the op from update_ops"),
        (WeightsAlone, "'ema' declares that it writes 'average/toy/norm/moving_mean', but no op of the step writes it"),
    ],
)
def test_a_run_whose_averages_would_not_move_does_not_start(kind, message: str) -> None:
    with pytest.raises(UserError, match=message):
        loop_with([named(kind(), "ema")], moving_network())


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_an_optimizer_with_averages_of_its_own_is_refused(wrap) -> None:
    network = toy_network(optimizer=wrap(keras.optimizers.Adam(use_ema=True)))
    with pytest.raises(UserError, match="optimizer.use_ema=true keeps other averages .* hook 'ema'") as caught:
        loop_with([ema()], network)
    assert "set optimizer.use_ema=false, or hooks.ema=null" in str(caught.value)


def test_of_two_averages_one_evaluates() -> None:
    network = moving_network()
    loop = loop_with([ema(evaluate=False), named(Ema(decay=0.9, warm_up=False), "slow")], network)
    averages = conventional(train(loop, 5), constant(0.9))
    assert_close(evaluated(loop), averages)
    assert {"ema/distance", "slow/distance", "slow/decay"} <= loop.accumulators.read().keys()
    both = loop_with([ema(), named(Ema(), "slow")], moving_network())
    with pytest.raises(UserError, match="'slow' evaluates with averages .* hooks.slow.evaluate=false"):
        evaluated(both)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 1.0}, "Invalid decay: 1.0. Expected a share in .0, 1., such as 0.999."),
        ({"decay": -0.1}, "Invalid decay: -0.1."),
        ({"decay": "0.9"}, "Invalid decay: '0.9'."),
        ({"warm_up": 1}, "Invalid warm_up: 1. Expected true or false."),
        ({"begin_epoch": -1}, "Invalid begin_epoch: -1. Expected a number of epochs of 0 or more."),
        ({"evaluate": "yes"}, "Invalid evaluate: 'yes'. Expected true or false."),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Ema(**options)
    assert "\n" not in str(caught.value)


def test_a_begin_after_the_end_is_refused() -> None:
    with pytest.raises(UserError, match="begin_epoch=250 is step 1000, but the run ends after 1000 steps"):
        loop_with([ema(begin_epoch=250)], moving_network())


def test_a_run_reports_its_averages_and_its_summary_says_what_they_are(tmp_path) -> None:
    plain = run_small("baseline", run_dir=tmp_path / "plain")
    overrides = "+hooks=ema", "hooks.ema.decay=0.5", "hooks.ema.begin_epoch=0.5"
    summary = run_small("baseline", *overrides, run_dir=tmp_path / "averaged")
    assert Ema().summary() == {}
    found = summary["hooks"]["ema"]
    assert found == {"decay": 0.5, "evaluate": True, "begin_step": 5, "updates": 15, "variables": 15}
    assert summary["final"]["loss/total"] == plain["final"]["loss/total"]
    assert summary["test"]["loss/total"] != plain["test"]["loss/total"]
    assert 0 < summary["final"]["ema/distance"] < 1


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"decay": 0.99, "warm_up": False}, "37 %"),
        ({"decay": 0.971, "warm_up": False}, "5 %"),
        ({"decay": 0.97, "warm_up": False}, None),
        ({"decay": 0.99, "warm_up": False, "begin_epoch": 20.0}, "82 %"),
        ({"decay": 0.9999, "warm_up": True}, None),
    ],
)
def test_a_decay_too_slow_for_the_run_is_pointed_at(run_of, options: dict[str, Any], left: str | None) -> None:
    network, hook = toy_network(), ema(**options)
    hook.build(build_context(network))  # 100 steps, 4 an epoch
    found = hook.advise(run_of(network, 100))
    assert len(found) == (left is not None)
    assert left is None or f"leaves {left} of the weights at the begin in the average" in found[0]
    assert left is None or "Set hooks.ema.warm_up=true" in found[0]
