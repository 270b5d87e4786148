"""Gradients are shortened to a limit, each way as its formula says, and never from NaN to a number."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.clip_gradients import WAYS, ClipGradients, clip_entries, norm_factors, squared_norms
from hooks.freeze_layers import FreezeLayers
from hooks.monitors.nan_guard import NanGuard
from tests.support.poison import Poison
from tests.support.toy import StatelessHook, build_context, toy_loop, toy_network, values_of
from trainer.errors import UserError
from trainer.hook import Gradients
from trainer.network import Network
from trainer.order import order_hooks
from trainer.step.context import StepContext

HIDDEN, LOGITS = "toy/hidden/kernel", "toy/logits/kernel"
RATE = 0.5
HUGE = np.float32(1e20)  # its square is beyond float32


def named(**options) -> ClipGradients:
    hook = ClipGradients(**options)
    hook.name, hook.network = "clip_gradients", "model"
    return hook


def built(network: Network | None = None, **options) -> ClipGradients:
    hook = named(**options)
    hook.build(build_context(network or toy_network()))
    return hook


def clipped(values: Gradients, network: Network | None = None, **options) -> tuple[Gradients, dict[str, float]]:
    """Return the gradients after the hook, and what it measures."""
    network = network or toy_network()
    hook = built(network, **options)
    context = StepContext(tf.constant(0, tf.int64), 0, True, "objective", network, {})
    given = {name: values.get(name) for name in network.trainable_variables}
    after = hook.transform_gradients(given, context)
    assert list(after) == list(given)
    return after, {name: float(value) for name, value in hook.measure(context).items()}


def gradients(seed: int = 0, scale: float = 1.0) -> Gradients:
    generator = np.random.default_rng(seed)
    shapes = {name: variable.shape for name, variable in toy_network().trainable_variables.items()}
    return {name: tf.constant(scale * generator.normal(size=shape), tf.float32) for name, shape in shapes.items()}


def global_norm(values: Gradients) -> float:
    return float(np.sqrt(sum(np.square(np.float64(value)).sum() for value in values.values() if value is not None)))


def test_the_norm_of_all_comes_down_to_the_limit_and_the_direction_stays() -> None:
    given = gradients()
    after, measured = clipped(given, limit=0.5)
    assert global_norm(after) == pytest.approx(0.5, rel=1e-6)
    for name, value in given.items():
        np.testing.assert_allclose(after[name], value * (0.5 / global_norm(given)), rtol=1e-5)
    assert measured["clip_gradients/before"] == pytest.approx(global_norm(given), rel=1e-5)
    assert measured["clip_gradients/after"] == pytest.approx(0.5, rel=1e-5)
    assert measured["clip_gradients/clipped"] == 1.0


@pytest.mark.parametrize("by", WAYS)
def test_gradients_within_the_limit_keep_their_bits(by: str) -> None:
    given = gradients(scale=0.01)
    after, measured = clipped(given, by=by, limit=100.0)
    for name, value in given.items():
        np.testing.assert_array_equal(after[name], value)
    assert measured["clip_gradients/before"] == measured["clip_gradients/after"]
    assert measured["clip_gradients/clipped"] == 0.0


def test_each_variable_has_a_limit_of_its_own() -> None:
    given = {**gradients(scale=1e-3), HIDDEN: tf.fill([6, 8], 2.0), LOGITS: tf.fill([8, 3], -5.0)}
    after, measured = clipped(given, by="variable_norm", limit=0.5)
    for name, value in after.items():
        if name in (HIDDEN, LOGITS):
            assert global_norm({name: value}) == pytest.approx(0.5, rel=1e-6)
            assert np.sign(value[0, 0]) == np.sign(given[name][0, 0])
        else:
            np.testing.assert_array_equal(value, given[name])
    assert measured["clip_gradients/clipped"] == pytest.approx(2 / len(given))
    assert measured["clip_gradients/after"] == pytest.approx(global_norm(after), rel=1e-5)


def test_each_entry_is_brought_into_its_interval() -> None:
    given = gradients()
    after, measured = clipped(given, by="value", limit=0.3)
    for name, value in given.items():
        np.testing.assert_array_equal(after[name], np.clip(value, -0.3, 0.3))
    entries = np.concatenate([np.abs(value).ravel() for value in given.values()])
    assert measured["clip_gradients/clipped"] == pytest.approx(np.mean(entries > 0.3))
    assert measured["clip_gradients/before"] == pytest.approx(global_norm(given), rel=1e-5)
    assert measured["clip_gradients/after"] == pytest.approx(global_norm(after), rel=1e-5)


@settings(max_examples=40)
@given(
    st.lists(st.floats(-10.0, 17.0).map(lambda power: 10.0**power), min_size=1, max_size=5),
    st.sampled_from([1e-3, 1.0, 50.0]),
    st.booleans(),
)
def test_no_norm_is_above_the_limit_and_none_grows(norms: list[float], limit: float, together: bool) -> None:
    values = [tf.constant([0.6 * norm, -0.8 * norm]) for norm in norms]
    factors = norm_factors(squared_norms(values), limit, together=together).numpy()
    assert ((factors >= 0) & (factors <= 1)).all()
    after = np.float64(norms) * factors
    assert (np.sqrt(np.square(after).sum()) if together else after.max()) <= limit * (1 + 1e-5)
    if together:
        assert (factors == factors[0]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("by", WAYS)
def test_what_is_not_finite_stays_so_and_the_others_stay_finite(by: str, bad: float) -> None:
    given = gradients(scale=0.1)
    spoilt = given[HIDDEN].numpy()
    spoilt[2, 3] = bad
    after, _ = clipped({**given, HIDDEN: tf.constant(spoilt)}, by=by, limit=0.05)
    assert not np.isfinite(after[HIDDEN][2, 3])
    for name, value in after.items():
        if name != HIDDEN:
            assert np.isfinite(value).all()
            assert np.abs(value).max() > 0.0
    if by == "norm":  # no norm says how much to shorten the others
        np.testing.assert_array_equal(after[LOGITS], given[LOGITS])


@pytest.mark.parametrize("by", ["norm", "variable_norm"])
def test_a_norm_beyond_float32_is_no_silent_zero(by: str) -> None:
    after, measured = clipped({**gradients(), HIDDEN: tf.fill([6, 8], HUGE)}, by=by)
    assert np.isnan(after[HIDDEN]).all()
    assert np.isfinite(after[LOGITS]).all()
    assert measured["clip_gradients/before"] == np.inf
    factors = norm_factors(tf.constant([2e38, 2e38, 0.0]), 1.0, together=by == "norm").numpy()  # the sum overflows
    assert np.isnan(factors[0]) or by == "variable_norm"
    assert not (factors[:2] == 0.0).any()
    finite = clip_entries(tf.constant([HUGE, -HUGE, 0.5]), 1.0)
    np.testing.assert_array_equal(finite, [1.0, -1.0, 0.5])


def test_only_the_chosen_layers_count_and_change() -> None:
    given = gradients()
    after, measured = clipped(given, layers=["logits"], limit=0.5)
    own = {name for name in given if name.startswith("toy/logits/")}
    assert len(own) == 2
    assert global_norm({name: after[name] for name in own}) == pytest.approx(0.5, rel=1e-6)
    assert measured["clip_gradients/before"] == pytest.approx(global_norm({n: given[n] for n in own}), rel=1e-5)
    for name in given.keys() - own:
        np.testing.assert_array_equal(after[name], given[name])


@pytest.mark.parametrize("by", WAYS)
def test_variables_without_a_gradient_are_left_out(by: str) -> None:
    after, measured = clipped({HIDDEN: tf.fill([6, 8], 1.0)}, by=by, limit=0.5)
    assert [name for name, value in after.items() if value is not None] == [HIDDEN]
    assert measured["clip_gradients/before"] == pytest.approx(np.sqrt(48.0))
    assert measured["clip_gradients/clipped"] == 1.0
    after, measured = clipped({}, by=by)
    assert set(after.values()) == {None}
    assert set(measured.values()) == {0.0}


def moved(network: Network, before: dict[str, np.ndarray]) -> float:
    names = network.trainable_variables
    return float(np.sqrt(sum(np.square(values_of(network)[name] - before[name]).sum() for name in names)))


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_a_step_is_no_longer_than_rate_times_limit(xla: bool) -> None:
    network = toy_network(optimizer=keras.optimizers.SGD(RATE))
    loop = toy_loop([named(limit=0.01)], network=network, xla=xla)
    before = values_of(network)
    loop.run(0, 1)
    assert moved(network, before) == pytest.approx(RATE * 0.01, rel=1e-3)
    reported = loop.accumulators.read()
    assert reported["clip_gradients/before"] > 0.1
    assert reported["clip_gradients/after"] == pytest.approx(0.01, rel=1e-4)
    assert reported["clip_gradients/clipped"] == 1.0


def test_micro_batches_are_clipped_once_as_a_whole() -> None:
    kernels = []
    for parts in (1, 4):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        model = keras.Model(inputs, keras.layers.Dense(3, name="logits")(inputs))
        network = Network("model", model, keras.optimizers.SGD(RATE))
        network.optimizer.build(model.trainable_variables)
        toy_loop([named(limit=0.05)], network=network, accumulation_steps=parts).run(0, 3)
        kernels.append(network.variables["logits/kernel"].numpy())
    np.testing.assert_allclose(kernels[0], kernels[1], rtol=1e-4, atol=1e-6)


def test_it_comes_after_hooks_that_stop_or_change_gradients() -> None:
    class Doubles(StatelessHook):
        def transform_gradients(self, gradients, context):
            return {name: 2.0 * value for name, value in gradients.items()}

    freeze = FreezeLayers(layers="hidden", end_epoch=1.0)
    freeze.name = "freeze_layers"
    hook = named(limit=0.01)
    assert [each.name for each in order_hooks([hook, Doubles("doubles"), freeze])][-1] == "clip_gradients"
    network = toy_network(optimizer=keras.optimizers.SGD(RATE))
    before = values_of(network)
    toy_loop([hook, Doubles("doubles"), freeze], network=network).run(0, 1)
    assert moved(network, before) == pytest.approx(RATE * 0.01, rel=1e-3)  # frozen gradients take no share of the limit
    assert (values_of(network)[HIDDEN] == before[HIDDEN]).all()


@pytest.mark.parametrize("by", WAYS)
def test_nan_guard_sees_the_gradient_that_is_not_finite_and_that_alone(by: str) -> None:
    guard, poison = NanGuard(), Poison(place="gradient", steps=[1])
    guard.name, guard.network = "nan_guard", "model"
    network = toy_network()
    loop = toy_loop([guard, poison, named(by=by, limit=1e-3)], network=network)
    assert loop.run(0, 1) == (1, [])
    before = values_of(network)
    assert loop.run(1, 3) == (1, [f"gradient/{sorted(network.trainable_variables)[0]}"])
    for key, value in values_of(network).items():
        assert value.tobytes() == before[key].tobytes()


@pytest.mark.parametrize("option", ["clipnorm", "clipvalue", "global_clipnorm"])
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_an_optimizer_that_clips_as_well_is_refused(option: str, wrap) -> None:
    network = toy_network(optimizer=wrap(keras.optimizers.Adam(**{option: 2.0})))
    message = f"'model' clips gradients as well: {option}=2.0. Expected optimizer.{option}=null"
    with pytest.raises(UserError, match=message):
        built(network)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "nrom"}, "Unknown by 'nrom'. Did you mean 'norm'?"),
        ({"limit": 0.0}, "Invalid limit: 0.0. Expected a number above 0"),
        ({"limit": None}, "Invalid limit"),
        ({"limit": float("inf")}, "Invalid limit"),
        ({"layers": ""}, "Invalid layers"),
        ({"layers": "logit"}, "The pattern 'logit' matches no layer with weights to train. Did you mean 'logits'?"),
        ({"layers": "activation"}, "matches no layer with weights to train"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options, message: str) -> None:
    with pytest.raises(UserError) as caught:
        built(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hook_of_another_name_measures_under_it() -> None:
    network = toy_network()
    hooks = [named(limit=0.1), named(by="value", limit=0.01)]
    hooks[1].name = "entries"
    loop = toy_loop(hooks, network=network)
    loop.run(0, 1)
    names = {f"{prefix}/{kind}" for prefix in ("clip_gradients", "entries") for kind in ("before", "after", "clipped")}
    assert names <= loop.accumulators.read().keys()
    assert hooks[0].summary() == {"by": "norm", "limit": 0.1, "variables": 6}
    assert ClipGradients().summary()["variables"] == 0


def test_half_precision_gradients_are_measured_in_full() -> None:
    value = tf.fill([6, 8], tf.constant(200.0, tf.float16))  # the sum of squares is beyond float16
    after, measured = clipped({HIDDEN: value}, limit=1.0)
    assert after[HIDDEN].dtype == tf.float16
    assert measured["clip_gradients/before"] == pytest.approx(200.0 * np.sqrt(48.0), rel=1e-3)
    np.testing.assert_allclose(np.float32(after[HIDDEN]), 1 / np.sqrt(48.0), rtol=2e-3)
