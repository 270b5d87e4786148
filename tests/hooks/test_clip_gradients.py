"""Gradients are clipped to a limit, each way by its formula; NaN never becomes a number."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.clip_gradients import WAYS, ClipGradients, clip_entries, norm_factors
from hookline.hooks.freeze_layers import FreezeLayers
from hookline.trainer.hook import Gradients
from hookline.trainer.network import Network
from hookline.trainer.step.context import StepContext
from hookline.trainer.step.stage import order_hooks
from tests.support.hooked import named
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, build_context, toy_loop, toy_network, values_of

HIDDEN, LOGITS = "toy/hidden/kernel", "toy/logits/kernel"
RATE = 0.5
HUGE = np.float32(1e20)  # its square is beyond float32


def built(network: Network | None = None, **options) -> ClipGradients:
    hook = named(ClipGradients(network="model", **options))
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


def expected_of(given: Gradients, by: str, limit: float) -> tuple[Gradients, float]:
    """Return the gradients clipped in NumPy, and the share that is clipped."""
    if by == "value":
        entries = np.concatenate([np.abs(value).ravel() for value in given.values()])
        return {name: np.clip(value, -limit, limit) for name, value in given.items()}, np.mean(entries > limit)
    together = by == "norm"
    norms = {name: global_norm(given if together else {name: value}) for name, value in given.items()}
    after = {name: value * min(1.0, limit / norms[name]) for name, value in given.items()}
    return after, np.mean([norm > limit for norm in norms.values()])


@pytest.mark.parametrize("by", WAYS)
def test_gradients_and_measures_match_numpy(by: str) -> None:
    given = {**gradients(scale=1e-3), HIDDEN: gradients()[HIDDEN], LOGITS: tf.fill([8, 3], -5.0)}
    after, measured = clipped(given, by=by, limit=0.5)
    expected, share = expected_of(given, by, 0.5)
    for name, value in expected.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5)
    assert measured["clip_gradients/before"] == pytest.approx(global_norm(given), rel=1e-5)
    assert measured["clip_gradients/after"] == pytest.approx(global_norm(expected), rel=1e-5)
    assert measured["clip_gradients/clipped"] == pytest.approx(share)
    after, measured = clipped(given, by=by, limit=100.0)
    for name, value in given.items():  # within the limit they keep their bits
        np.testing.assert_array_equal(after[name], value)
    assert measured["clip_gradients/clipped"] == 0.0
    after, measured = clipped({HIDDEN: tf.fill([6, 8], 1.0)}, by=by, limit=0.5)  # the others have no gradient
    assert [name for name, value in after.items() if value is not None] == [HIDDEN]
    assert measured["clip_gradients/before"] == pytest.approx(np.sqrt(48.0))
    after, measured = clipped({}, by=by)
    assert set(after.values()) == {None}
    assert set(measured.values()) == {0.0}


def test_only_chosen_layers_are_clipped_and_float16_norms_do_not_overflow() -> None:
    given = gradients()
    after, measured = clipped(given, layers=["logits"], limit=0.5)
    own = {name for name in given if name.startswith("toy/logits/")}
    assert global_norm({name: after[name] for name in own}) == pytest.approx(0.5, rel=1e-6)
    assert measured["clip_gradients/before"] == pytest.approx(global_norm({n: given[n] for n in own}), rel=1e-5)
    for name in given.keys() - own:
        np.testing.assert_array_equal(after[name], given[name])
    value = tf.fill([6, 8], tf.constant(200.0, tf.float16))  # the sum of squares is beyond float16
    after, measured = clipped({HIDDEN: value}, limit=1.0)
    assert after[HIDDEN].dtype == tf.float16
    assert measured["clip_gradients/before"] == pytest.approx(200.0 * np.sqrt(48.0), rel=1e-3)


@pytest.mark.parametrize("by", WAYS)
def test_nonfinite_gradients_stay_nonfinite_and_the_others_finite(by: str) -> None:
    given = gradients(scale=0.1)
    spoilt = given[HIDDEN].numpy()
    spoilt[2, 3] = np.nan
    after, _ = clipped({**given, HIDDEN: tf.constant(spoilt)}, by=by, limit=0.05)
    assert not np.isfinite(after[HIDDEN][2, 3])
    for name, value in after.items():
        if name != HIDDEN:
            assert np.isfinite(value).all()
            assert np.abs(value).max() > 0.0
    if by == "norm":  # without a finite norm the others are not clipped
        np.testing.assert_array_equal(after[LOGITS], given[LOGITS])


@pytest.mark.parametrize("by", ["norm", "variable_norm"])
def test_norm_beyond_float32_does_not_silently_zero_gradients(by: str) -> None:
    after, measured = clipped({**gradients(), HIDDEN: tf.fill([6, 8], HUGE)}, by=by)
    assert np.isnan(after[HIDDEN]).all()
    assert np.isfinite(after[LOGITS]).all()
    assert measured["clip_gradients/before"] == np.inf
    factors = norm_factors(tf.constant([2e38, 2e38, 0.0]), 1.0, together=by == "norm").numpy()  # the sum overflows
    assert np.isnan(factors[0]) or by == "variable_norm"
    assert not (factors[:2] == 0.0).any()
    finite = clip_entries(tf.constant([HUGE, -HUGE, 0.5]), 1.0)
    np.testing.assert_array_equal(finite, [1.0, -1.0, 0.5])


def test_clipping_runs_after_hooks_that_stop_or_change_gradients() -> None:
    class Doubles(StatelessHook):
        def transform_gradients(self, gradients, context):
            return {name: 2.0 * value for name, value in gradients.items()}

    freeze = named(FreezeLayers(layers="hidden", end_epoch=1.0))
    hook = named(ClipGradients(limit=0.01, network="model"))
    assert [each.name for each in order_hooks([hook, Doubles("doubles"), freeze])][-1] == "clip_gradients"
    network = toy_network(optimizer=keras.optimizers.SGD(RATE))
    before = values_of(network)
    toy_loop([hook, Doubles("doubles"), freeze], network=network).run(0, 1)
    after = values_of(network)
    moved = global_norm({name: after[name] - before[name] for name in network.trainable_variables})
    assert moved == pytest.approx(RATE * 0.01, rel=1e-3)  # frozen gradients take no share of the limit
    assert (after[HIDDEN] == before[HIDDEN]).all()


def test_layers_without_trainable_weights_are_refused() -> None:
    assert_refused("activation", built, layers="activation")
