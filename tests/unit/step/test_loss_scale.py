"""Loss scaling: true gradients for everybody, and a step that overflows leaves nothing but a lower scale."""

from __future__ import annotations

import math
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.bnn_rounding import BnnRounding
from hooks.center_loss import CenterLoss
from hooks.ema import Ema
from hooks.monitors.nan_guard import NanGuard
from tests.support.toy import (
    BATCH,
    CLASSES,
    FEATURES,
    StatelessHook,
    ToyObjective,
    build_context,
    toy_batch,
    toy_model,
    toy_network,
    values_of,
)
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.objective import ObjectiveOutput
from trainer.run.precision import computing_in
from trainer.run.state import assign_variables, read_variables, run_variables
from trainer.step.loop import ChunkLoop
from trainer.step.loss_scale import CEILING, FLOOR, GROWTH_STEPS, INITIAL, LossScale
from trainer.step.trainer import Trainer

OVERFLOW = 1e6  # times the scale it is beyond float16, while the loss itself is finite


class Weighted(ToyObjective):
    """Minimise cross-entropy times a factor of the batch, in float32."""

    def compute(self, forward, batch):
        logits = tf.cast(forward(self.network, batch["inputs"]), tf.float32)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)
        return ObjectiveOutput({"cross_entropy": loss * batch["factor"]}, outputs=logits)


def batches_with(factors: dict[int, float], default: float = 1.0):
    """Return toy batches whose loss has these factors at these steps."""

    def batch(step):
        factor = tf.constant(default)
        for at, value in factors.items():
            factor = tf.where(step == at, value, factor)
        return {**toy_batch(step), "factor": tf.fill([BATCH], factor)}

    return batch


def half_network(**arguments) -> Network:
    keras.utils.set_random_seed(0)
    with computing_in("float16"):
        return toy_network(optimizer=keras.optimizers.Adam(0.05), **arguments)


def half_loop(
    hooks=(), *, batch=None, network=None, scale=None, xla=False, accumulation_steps=1, objectives=None
) -> ChunkLoop:
    network = network or half_network(dropout=0.5)
    for hook in hooks:
        hook.build(replace(build_context(network), classes=CLASSES))
    trainer = Trainer(
        [network],
        objectives or [Weighted()],
        hooks,
        seed=0,
        accumulation_steps=accumulation_steps,
        loss_scale=scale or LossScale(),
    )
    return ChunkLoop(trainer, batch or batches_with({}), xla=xla)


def all_values(loop: ChunkLoop) -> dict[str, np.ndarray]:
    """Return every variable that a checkpoint holds, but the scale's own."""
    trainer = loop.trainer
    variables = run_variables(trainer.networks.values(), trainer.hooks, loop.accumulators.variable)
    return read_variables(variables)


def plain_network(precision: str) -> Network:
    keras.utils.set_random_seed(0)
    with computing_in(precision):
        layers = [
            keras.Input((FEATURES,)),
            keras.layers.Dense(8, name="hidden", activation="tanh"),
            keras.layers.Dense(CLASSES, name="logits"),
        ]
        network = Network("model", keras.Sequential(layers, name="toy"), keras.optimizers.SGD(0.1))
    network.optimizer.build(network.model.trainable_variables)
    return network


class Seen(StatelessHook):
    """Keep the gradients that hooks see, to be read as measures."""

    def measure(self, context):
        return {f"{name}/{i}": g for name, v in context.gradients.items() for i, g in enumerate(tf.unstack(_flat(v)))}


def _flat(value: tf.Tensor) -> tf.Tensor:
    return tf.reshape(value, [-1])


def seen_gradients(precision: str, scale: LossScale | None, *, factor: float, accumulation_steps: int = 1):
    trainer = Trainer(
        [plain_network(precision)],
        [Weighted()],
        [Seen()],
        seed=0,
        accumulation_steps=accumulation_steps,
        loss_scale=scale,
    )
    loop = ChunkLoop(trainer, batches_with({}, factor), xla=False)
    assert loop.run(0, 1) == (1, [])
    return np.array([value for name, value in loop.accumulators.read().items() if name.startswith("toy/")])


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_hooks_see_the_true_gradients_where_float16_has_no_number_for_them(accumulation_steps: int) -> None:
    factor = 1e-7
    true = seen_gradients("float32", None, factor=factor)
    assert np.abs(true).max() > 1e-9
    assert not seen_gradients("float16", None, factor=factor).any()  # the trap: without scaling nothing trains
    found = seen_gradients("float16", LossScale(), factor=factor, accumulation_steps=accumulation_steps)
    np.testing.assert_allclose(found, true, atol=2e-2 * np.abs(true).max())


class Slope(ToyObjective):
    """Hold the slope of the summed logits with respect to the inputs at 1, times a factor of the batch."""

    def compute(self, forward, batch):
        inputs = tf.stop_gradient(batch["inputs"])
        logits = tf.cast(forward(self.network, inputs), tf.float32)
        (gradient,) = forward.gradients(tf.reduce_sum(logits) * batch["factor"][0], [inputs])
        assert gradient.dtype == tf.float32
        slope = tf.sqrt(tf.reduce_sum(tf.square(gradient), axis=1) + 1e-20)
        losses = {"slope": tf.square(slope - 1.0), "nothing": 0.0 * tf.reduce_sum(logits, axis=1)}  # biases count, too
        return ObjectiveOutput(losses, outputs=logits)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_gradients_inside_of_a_loss_do_not_vanish_either(accumulation_steps: int) -> None:
    found = {}
    for precision, scale, steps in (("float32", None, 1), ("float16", None, 1), ("float16", LossScale(), 2)):
        network = plain_network(precision)
        kernels = [variable for name, variable in network.trainable_variables.items() if name.endswith("kernel")]
        for kernel in kernels:
            kernel.assign(kernel * 3e-4)  # the slope is near 1e-7
        trainer = Trainer(
            [network],
            [Slope()],
            [Seen()],
            seed=0,
            accumulation_steps=accumulation_steps if steps > 1 else 1,
            loss_scale=scale,
        )
        loop = ChunkLoop(trainer, batches_with({}), xla=False)
        assert loop.run(0, 1) == (1, [])
        seen = loop.accumulators.read()
        found[precision, scale is None] = np.array([v for name, v in seen.items() if "hidden/kernel" in name])
    true = found["float32", True]
    size = np.linalg.norm(true)
    assert np.linalg.norm(found["float16", True] - true) > 0.2 * size  # the trap
    np.testing.assert_allclose(found["float16", False], true, atol=5e-2 * np.abs(true).max())


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_an_overflow_inside_of_a_loss_is_one_like_any_other(accumulation_steps: int) -> None:
    scale = LossScale()
    batch = batches_with({1: OVERFLOW}, default=1e-3)
    network, hooks = plain_network("float16"), [guard()]
    loop = half_loop(
        hooks, batch=batch, network=network, scale=scale, objectives=[Slope()], accumulation_steps=accumulation_steps
    )
    assert loop.run(0, 1) == (1, [])
    before = all_values(loop)
    assert loop.run(1, 1) == (2, [])  # the loss itself is infinite here, but for no fault of the network
    after = all_values(loop)
    assert [key for key in before if before[key].tobytes() != after[key].tobytes()] == []
    assert (float(scale.value), int(scale.overflow_steps)) == (INITIAL / 2, 1)
    assert loop.run(2, 1) == (3, [])
    assert all_values(loop)["optimizer/model/iteration"] == 2


def test_where_no_lower_scale_mends_an_overflow_inside_of_a_loss_the_run_stops() -> None:
    scale = LossScale()
    scale.value.assign(2.0)
    loop = half_loop(
        [guard()],
        batch=batches_with({}, OVERFLOW),
        network=plain_network("float16"),
        scale=scale,
        objectives=[Slope()],
    )
    step, vetoes = loop.run(0, 5)
    assert (step, float(scale.value)) == (1, FLOOR)
    assert "loss/total" in vetoes


@pytest.mark.parametrize(("value", "inner"), [(1.0, 1.0), (2.0, 1.0), (2.0**15, 2.0**7), (CEILING, 2.0**30)])
def test_the_scale_inside_of_a_loss_is_the_root_as_a_power_of_two(value: float, inner: float) -> None:
    scale = LossScale()
    scale.value.assign(value)
    assert float(scale.inner()) == inner


def test_an_evaluation_differentiates_nothing_twice_and_needs_no_scale() -> None:
    trainer = half_loop().trainer
    scales = {}

    def trace():
        for training in (True, False):
            scales[training] = trainer.forward(tf.constant(0, tf.int64), {}, objective="", training=training).scale
        return scales[True]

    assert float(tf.function(trace, autograph=False)()) == 2.0**7
    assert scales[False] is None


def test_a_source_that_does_not_count_has_no_gradient() -> None:
    trainer = half_loop().trainer

    def trace():
        forward = trainer.forward(tf.constant(0, tf.int64), {}, objective="", training=True)
        used, unused = tf.constant([2.0], tf.float16), tf.constant([3.0])
        gradient, none = forward.gradients(tf.reduce_sum(tf.square(used)), [used, unused])
        assert none is None
        return gradient

    gradient = tf.function(trace, autograph=False)()
    assert gradient.dtype == tf.float32
    assert float(gradient[0]) == 4.0


@pytest.mark.parametrize("settings", [{}, {"xla": True}, {"accumulation_steps": 2}], ids=["plain", "xla", "micro"])
def test_an_overflow_changes_no_bit_but_halves_the_scale_and_the_loop_goes_on(settings: dict) -> None:
    scale = LossScale()
    hooks = [guard()] if "xla" in settings else [guard(), rounding(), average()]  # XLA takes its time for each
    loop = half_loop(hooks, batch=batches_with({2: OVERFLOW}), scale=scale, **settings)
    assert loop.run(0, 2) == (2, [])
    before = all_values(loop)
    assert loop.run(2, 1) == (3, [])
    after = all_values(loop)
    assert sorted(before) == sorted(after)
    assert [key for key in before if before[key].tobytes() != after[key].tobytes()] == []
    assert (float(scale.value), int(scale.finite_steps), int(scale.overflow_steps)) == (INITIAL / 2, 0, 1)
    assert loop.run(3, 1) == (4, [])
    moved = all_values(loop)
    assert moved["optimizer/model/iteration"] == 3
    assert int(scale.finite_steps) == 1
    moving = {"network/model/toy/hidden/kernel", "network/model/toy/norm/moving_mean", "hook/ema/updates"}
    for key in moving & moved.keys():
        assert (moved[key] != before[key]).any(), key
    assert np.isfinite(list(loop.accumulators.read().values())).all()


def guard() -> GraphHook:
    hook = NanGuard()
    hook.name, hook.network = "nan_guard", "model"
    return hook


def rounding() -> GraphHook:
    hook = BnnRounding(input_quantizer=None, all_binary=True)
    hook.name = "bnn_rounding"
    return hook


def average() -> GraphHook:
    hook = Ema(decay=0.5)
    hook.name = "ema"
    return hook


def test_centers_stay_where_the_step_overflows() -> None:
    hook = CenterLoss(layer="activation")
    hook.name = "center_loss"
    network = half_network()
    network.taps |= hook.request_taps(network.model)
    loop = half_loop([hook], network=network, batch=batches_with({1: OVERFLOW}))
    loop.run(0, 1)
    before = np.array(hook.state()["centers"])
    assert before.any()
    loop.run(1, 1)
    np.testing.assert_array_equal(hook.state()["centers"], before)
    loop.run(2, 1)
    assert (np.array(hook.state()["centers"]) != before).any()


def test_a_loss_that_is_not_a_number_is_no_overflow() -> None:
    scale = LossScale()
    loop = half_loop([guard()], batch=batches_with({1: math.nan}), scale=scale)
    step, vetoes = loop.run(0, 3)
    assert step == 1
    assert "loss/total" in vetoes
    assert (float(scale.value), int(scale.overflow_steps)) == (INITIAL, 0)
    assert int(scale.finite_steps) == 1


def test_an_overflow_at_the_floor_stops_the_run() -> None:
    scale = LossScale()
    scale.value.assign(2.0)
    loop = half_loop([guard()], batch=batches_with({}, 1e10), scale=scale)
    step, vetoes = loop.run(0, 5)
    assert step == 1  # the first overflow took the scale to its floor
    assert any(name.startswith("gradient/") for name in vetoes)
    assert float(scale.value) == FLOOR


def test_the_scale_doubles_after_enough_steps_without_overflow() -> None:
    scale = LossScale()
    scale.finite_steps.assign(GROWTH_STEPS - 2)
    loop = half_loop(scale=scale)
    loop.run(0, 1)
    assert (float(scale.value), int(scale.finite_steps)) == (INITIAL, GROWTH_STEPS - 1)
    loop.run(1, 1)
    assert (float(scale.value), int(scale.finite_steps)) == (2 * INITIAL, 0)


def test_the_scale_stays_finite_where_nothing_ever_overflows() -> None:
    scale = LossScale()
    scale.value.assign(CEILING)
    scale.finite_steps.assign(GROWTH_STEPS)
    scale.update(tf.constant(False), tf.constant(True))
    assert float(scale.value) == CEILING


def test_an_overflow_holds_back_the_objectives_after_it_alone() -> None:
    first, second = half_network(), half_network()
    first.name, second.name = "first", "second"

    class Later(Weighted):
        def compute(self, forward, batch):
            return super().compute(forward, {**batch, "factor": batch["later"]})

    def batch(step):
        early = batches_with({1: OVERFLOW})(step)
        return {**early, "later": batches_with({3: OVERFLOW})(step)["factor"]}

    objectives = [Weighted("first", "early"), Later("second", "late")]
    scale = LossScale()
    trainer = Trainer([first, second], objectives, [], seed=0, loss_scale=scale)
    loop = ChunkLoop(trainer, batch, xla=False)
    counts = []
    for step in range(4):
        assert loop.run(step, 1) == (step + 1, [])
        counts.append([int(each.optimizer.iterations) for each in (first, second)])
    assert counts == [[1, 1], [1, 1], [2, 2], [3, 2]]
    assert (float(scale.value), int(scale.overflow_steps)) == (INITIAL / 4, 2)


def test_the_scale_goes_on_from_a_checkpoint() -> None:
    scale, again = LossScale(), LossScale()
    loop = half_loop(batch=batches_with({0: OVERFLOW}), scale=scale)
    loop.run(0, 3)
    saved = read_variables(run_variables([], [], loop.accumulators.variable, scale))
    assert {key for key in saved if key != "accumulators"} == {
        *("loss_scale/value", "loss_scale/finite_steps", "loss_scale/overflow_steps")
    }
    variables = run_variables([], [], loop.accumulators.variable, again)
    assign_variables(variables, saved, "the checkpoint")
    assert (float(again.value), int(again.finite_steps), int(again.overflow_steps)) == (INITIAL / 2, 2, 1)


def test_an_optimizer_that_scales_too_is_refused() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    network = Network("model", toy_model(), optimizer)
    network.optimizer.build(network.model.trainable_variables)
    Trainer([network], [ToyObjective()], [], seed=0)
    with pytest.raises(UserError, match=r"'model' is a LossScaleOptimizer.*Expected its inner optimizer alone\."):
        Trainer([network], [ToyObjective()], [], seed=0, loss_scale=LossScale())


def test_signs_are_exact_in_float16_and_all_that_is_kept_is_in_float32() -> None:
    network = half_network()
    loop = half_loop([rounding(), Signs()], network=network)
    loop.run(0, 2)
    assert loop.accumulators.read()["signs"] == 1.0
    assert {value.dtype.name for value in values_of(network).values()} <= {"float32", "int32", "int64", "uint32"}


class Signs(StatelessHook):
    """Measure whether the binary kernel survives float16."""

    after = ("bnn_rounding",)

    def transform_weights(self, weights, context):
        used = weights["toy/hidden/kernel"]
        context.taps["exact"] = tf.reduce_all(tf.cast(tf.cast(used, tf.float16), tf.float32) == used)
        return weights

    def measure(self, context):
        return {"signs": tf.cast(context.taps["exact"], tf.float32)}
