"""Moving averages of weights and statistics: their values, who uses them, and their constraints."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.bnn_rounding import BnnRounding
from hookline.hooks.ema import Ema
from hookline.hooks.freeze_layers import FreezeLayers
from hookline.hooks.frozen_mask import FrozenMask
from hookline.hooks.incremental_quantization import IncrementalQuantization
from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.run.state import shipped_weights
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.loop import ChunkLoop
from tests.support.batches import assert_same_bits
from tests.support.hooked import named
from tests.support.masking import KERNELS, Maker, bits, kernels_of, masked_loop, small_network
from tests.support.refusals import assert_refused
from tests.support.toy import build_context, toy_loop, toy_network, values_of

Values = dict[str, np.ndarray]


def ema(**options: Any) -> Ema:
    return named(Ema(**{"decay": 0.7, "warm_up": False, **options}))


def moving_network(**arguments: Any) -> Network:
    """Return the toy network with fast-moving statistics and an optimizer with momentum."""
    network = toy_network(optimizer=keras.optimizers.Adam(0.05), **arguments)
    network.model.get_layer("norm").momentum = 0.5
    return network


def weights_of(network: Network) -> Values:
    return {name: variable.numpy() for name, variable in network.weights.items()}


def reader(loop: ChunkLoop) -> Callable[..., Values]:
    """Return a function, traced once, that reads the weights and statistics that evaluations use."""
    names = loop.trainer.networks["model"].weights

    @tf.function(autograph=False)
    def read(step: tf.Tensor) -> dict[str, tf.Tensor]:
        forward = loop.trainer.forward(step, {}, objective="", training=False)
        values = {**forward.passes["model"].context.weights, **forward.passes["model"].state}
        return {name: values[name] for name in names}

    return lambda step=0: {name: value.numpy() for name, value in read(tf.constant(step, tf.int64)).items()}


def evaluated(loop: ChunkLoop, step: int = 0) -> Values:
    return shipped_weights(loop.trainer, step)["model"]


def conventional(history: Sequence[Values], decay: Callable[[int], float]) -> Values:
    """Return the usual averages, updated after every step, in float64."""
    average = {name: value.astype(np.float64) for name, value in history[0].items()}
    for t, values in enumerate(history[1:], start=1):
        average = {name: decay(t) * average[name] + (1 - decay(t)) * value for name, value in values.items()}
    return average


@pytest.mark.parametrize(("warm_up", "begin", "xla"), [(True, 0, True), (False, 3, False)])
def test_evaluation_uses_the_averages_after_the_step(warm_up: bool, begin: int, xla: bool):
    network = moving_network(dropout=0.3)
    loop = masked_loop([ema(warm_up=warm_up, begin_epoch=begin / 4)], network, xla=xla)
    history, read, shares = [weights_of(network)], reader(loop), []
    assert_same_bits(read(), history[0])
    decay = (lambda t: min(0.7, (1 + t) / (10 + t))) if warm_up else (lambda t: 0.7)
    for step in range(12):
        loop.run(step, 1)
        reported = loop.accumulators.read()
        shares.append(reported["ema/decay"])
        loop.accumulators.reset()
        history.append(weights_of(network))
        averages = conventional(history[min(begin, step + 1) :], decay)
        found = read()
        assert found.keys() == averages.keys()
        for name, value in averages.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=2e-7, err_msg=name)
        names, now = network.trainable_variables, history[-1]
        away = np.sqrt(sum(np.square(now[name] - averages[name]).sum() for name in names))
        length = np.sqrt(sum(np.square(now[name], dtype=np.float64).sum() for name in names))
        assert reported["ema/distance"] == pytest.approx(away / length, rel=1e-3)
    assert shares == pytest.approx([*([0.0] * begin), *(decay(t) for t in range(1, 13 - begin))])
    assert_same_bits(evaluated(loop), read())
    assert_same_bits(read(0), read(900))  # it depends on the state, not on the step
    late = conventional(history[begin:-1], decay)  # the state lags by one step: the test tells the two apart
    assert all(np.abs(late[name] - value).max() > 1e-4 for name, value in averages.items())
    assert {name.rpartition("/")[2] for name in late} >= {"kernel", "bias", "gamma", "moving_mean", "moving_variance"}


def test_chunks_average_each_step_once_and_do_not_change_training() -> None:
    states, trained, shown = [], [], []
    for options, chunks in (({}, (6,)), ({"evaluate": False}, (1, 1, 4)), (None, (6,))):
        keras.utils.set_random_seed(1)
        network, start = moving_network(dropout=0.3), 0
        hooks = [] if options is None else [ema(**options)]
        loop = masked_loop(hooks, network)
        for steps in chunks:
            loop.run(start, steps)
            start += steps
        trained.append(values_of(network))
        states += [{name: each.numpy() for name, each in hook.declare().state.items()} for hook in hooks]
        shown.append(evaluated(loop))
    assert states[0]["updates"] == 6
    assert_same_bits(states[1], states[0])
    for values in trained[1:]:
        assert_same_bits(values, trained[0])
    assert_same_bits(shown[1], weights_of(network))  # averages are kept but not used
    assert states[0].keys() == {*(f"average/{name}" for name in network.weights), "updates"}  # and none of a seed


def test_averages_of_clipped_weights_are_clipped_and_give_the_signs() -> None:
    network = toy_network(optimizer=keras.optimizers.SGD(20.0))
    rounding = named(BnnRounding(input_quantizer=None, all_binary=True, clip=0.3), "bnn_rounding")
    hook = ema(decay=0.8)
    loop = masked_loop([rounding, hook], network)
    assert [each.name for each in loop.trainer.hooks] == ["ema", "bnn_rounding"]
    history = [weights_of(network)]
    for step in range(40):
        loop.run(step, 1)
        history.append(weights_of(network))
    latent = conventional(history, lambda t: 0.8)
    for name in ("toy/hidden/kernel", "toy/logits/kernel"):
        average = hook.declare().state[f"average/{name}"].numpy()
        assert np.abs(history[-1][name]).max() == np.float32(0.3)
        assert np.abs(average).max() <= np.float32(0.3)
        sure = np.abs(latent[name]) > 1e-5
        signs = np.where(latent[name] >= 0, 0.3, -0.3)
        np.testing.assert_allclose(evaluated(loop)[name][sure], signs[sure], rtol=1e-6)
        assert ((history[-1][name] >= 0) != (latent[name] >= 0)).any(), "averaging matters here"


def test_averages_of_bfloat16_weights_are_float32() -> None:
    keras.config.set_dtype_policy("bfloat16")
    try:
        network = toy_network()
    finally:
        keras.config.set_dtype_policy("float32")
    hook = ema(decay=0.999)  # in bfloat16 an average rising from 0 to 1 would stop near 0.25
    hook.build(build_context(network))
    for name, average in hook.declare().state.items():
        assert name == "updates" or average.dtype == tf.float32
    context = StepContext(tf.constant(1, tf.int64), 0, False, "", network, {})
    context.latent = {name: tf.convert_to_tensor(each.value) for name, each in network.trainable_variables.items()}
    assert hook.transform_weights(dict(context.latent), context)["toy/hidden/kernel"].dtype == tf.bfloat16


def test_late_begin_and_competing_averages_are_refused() -> None:
    assert_refused("begin_epoch=250", masked_loop, [ema(begin_epoch=250)], moving_network())
    both = masked_loop([ema(), named(Ema(), "slow")], moving_network())
    assert_refused("hooks.slow.evaluate=false", evaluated, both)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(use_ema=True))
    assert_refused("use_ema", masked_loop, [ema()], toy_network(optimizer=optimizer))


# Together with hooks that hold values: masks, levels, frozen layers.


def held_loop(*hooks: GraphHook) -> tuple[ChunkLoop, Network]:
    """Return a loop with averages; an epoch has 4 steps."""
    network = small_network(keras.optimizers.Adam(0.05))
    return masked_loop([*hooks, ema(decay=0.9)], network), network


def check_entries(found: Values, now: Values, held: Values) -> None:
    """Expect the current bits where held, and an average elsewhere."""
    for name, value in now.items():
        np.testing.assert_array_equal(bits(found[name])[held[name]], bits(value)[held[name]], err_msg=name)
        free = ~held[name]
        assert np.mean(found[name][free] != value[free]) > 0.9 or not free.any(), name


def masks_of(hook: GraphHook) -> Values:
    return {name: hook.declare().state[f"mask/{name}"].numpy() for name in KERNELS}


def test_entries_held_by_followed_masks_are_not_averaged() -> None:
    drawn = np.random.default_rng(0).random((2, 6, 5)) < 0.5
    maker = Maker(
        {step: {"hidden/kernel": drawn[i], "logits/kernel": drawn[i, :5, :3]} for i, step in enumerate((3, 6))}, 0.25
    )
    follower = FrozenMask(masks="hook", hook="maker", begin_epoch=0.5)
    loop, network = held_loop(maker, named(follower, "frozen_mask"))
    read = reader(loop)
    for step in range(9):
        loop.run(step, 1)
        held = {name: ~trains for name, trains in masks_of(maker).items()}  # nothing before step 3
        check_entries(read(step + 1), kernels_of(network), held)
    assert (kernels_of(network)["hidden/kernel"][held["hidden/kernel"]] == 0.25).any()


def test_quantized_entries_are_on_their_levels() -> None:
    quantization = IncrementalQuantization(shares=[0.5, 1.0], begin_epoch=1.0, step_epochs=2.0)
    loop, network = held_loop(named(quantization, "incremental_quantization"))
    loop.run(0, 6)
    held = {name: ~trains for name, trains in masks_of(quantization).items()}
    check_entries(evaluated(loop, 6), kernels_of(network), held)
    loop.run(6, 8)
    shipped = evaluated(loop, 14)
    assert quantization.shipped_bits(shipped).stored == dict.fromkeys(KERNELS, 5.0)
    assert (shipped["hidden/bias"] != network.variables["hidden/bias"].numpy()).any()


def test_layer_is_averaged_except_while_frozen() -> None:
    layers = {*("toy/hidden/kernel", "toy/hidden/bias", "toy/norm/gamma", "toy/norm/beta")}
    statistics = {"toy/norm/moving_mean", "toy/norm/moving_variance"}
    frozen = layers | statistics
    for options, expected in (
        ({"begin_epoch": 1.0, "end_epoch": 2.0}, ((4, set()), (5, frozen), (8, frozen), (9, set()))),
        ({"batch_norm": "running"}, ((9, layers),)),
    ):
        network = moving_network()
        freeze = named(FreezeLayers(layers=["hidden", "norm"], **options), "freeze_layers")
        loop, start = toy_loop([freeze, ema(decay=0.9)], network=network), 0
        for step, held in expected:
            loop.run(start, step - start)
            shipped, start = evaluated(loop, step), step
            same = {n for n, v in network.weights.items() if np.array_equal(bits(shipped[n]), bits(v.numpy()))}
            assert same == held
