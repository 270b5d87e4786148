"""Losses weighted by class and by example, as in Keras; and the loss scale of float16."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.monitors.nan_guard import NanGuard
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import ArraySource
from hookline.trainer.objective import SAMPLE_WEIGHTS, SOFT_TARGETS, ObjectiveOutput
from hookline.trainer.run.machine import computing_in
from hookline.trainer.run.state import trainer_variables, values_by_key
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.metrics import CEILING, FLOOR, GROWTH_STEPS, INITIAL, LossScale, weigh_losses
from hookline.trainer.step.trainer import Trainer
from tests.support.batches import assert_same_bits
from tests.support.hooked import named
from tests.support.masking import small_network
from tests.support.refusals import assert_refused
from tests.support.toy import (
    BATCH,
    SIZE,
    StatelessHook,
    ToyObjective,
    toy_arrays,
    toy_batch,
    toy_loop,
    toy_network,
)

WEIGHTS = [3.0, 0.5, 0.0]


class Weighable(ToyObjective):
    class_losses = ("cross_entropy",)


def weighted_loop(weights=WEIGHTS, objective=Weighable):
    keras.utils.set_random_seed(1)
    return toy_loop(objectives=[objective()], class_weights=None if weights is None else tf.constant(weights))


def test_examples_are_weighted_by_class_or_class_mixture():
    losses = {"cross_entropy": tf.constant([1.0, 2.0, 4.0], tf.float16), "domain": tf.constant([1.0, 1.0, 1.0])}
    batch = {"inputs": tf.zeros([3, 1]), "targets": tf.constant([0, 2, 1])}
    found = weigh_losses(Weighable(), losses, batch, tf.constant(WEIGHTS))
    assert found["cross_entropy"].dtype == tf.float16
    np.testing.assert_array_equal(found["cross_entropy"], [3.0, 0.0, 2.0])
    np.testing.assert_array_equal(found["domain"], [1.0, 1.0, 1.0])
    mixed = {"inputs": tf.zeros([2, 1]), SOFT_TARGETS: tf.constant([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])}
    found = weigh_losses(Weighable(), {"cross_entropy": tf.constant([2.0, 10.0])}, mixed, tf.constant(WEIGHTS))
    np.testing.assert_allclose(found["cross_entropy"], [3.5, 1.0])
    assert_refused("'objective'", weighted_loop, objective=ToyObjective)


def test_metrics_and_evaluation_ignore_class_weights():
    weighted, plain = weighted_loop(), weighted_loop(None)
    for loop in (weighted, plain):
        loop.run(0, 1)
    ours, theirs = weighted.accumulators.read(), plain.accumulators.read()
    assert ours["metric/accuracy"] == theirs["metric/accuracy"]
    assert ours["loss/total"] == ours["loss/cross_entropy"] != pytest.approx(theirs["loss/total"], rel=1e-3)
    weighted.trainer.networks["model"].model.set_weights(plain.trainer.networks["model"].model.get_weights())
    found = [Evaluator(loop.trainer, toy_batch, SIZE // BATCH).run(1) for loop in (weighted, plain)]
    assert found[0] == found[1]


OVERFLOW = 1e6  # multiplied by the scale, it exceeds float16, while the loss itself is finite


class Weighted(ToyObjective):
    def compute(self, forward, batch):
        logits = tf.cast(forward(self.network, batch["inputs"]), tf.float32)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)
        return ObjectiveOutput({"cross_entropy": loss * batch["factor"]}, outputs=logits)


def batches_with(factors, default=1.0):
    def batch(step):
        factor = tf.constant(default)
        for at, value in factors.items():
            factor = tf.where(step == at, value, factor)
        return {**toy_batch(step), "factor": tf.fill([BATCH], factor)}

    return batch


def half_loop(hooks=(), *, batch=None, network=None, scale=None, objectives=None, **options):
    keras.utils.set_random_seed(0)
    with computing_in("float16"):
        network = network or toy_network(optimizer=keras.optimizers.Adam(0.05), dropout=0.5)
    options |= {"loss_scale": scale or LossScale(), "objectives": objectives or [Weighted()]}
    return toy_loop(hooks, network=network, batch=batch or batches_with({}), **options)


def all_values(loop):
    """Return every variable that a checkpoint contains, except those of the loss scale."""
    values = values_by_key({"accumulators": loop.accumulators.variable, **trainer_variables(loop.trainer)})
    return {key: value for key, value in values.items() if not key.startswith("loss_scale/")}


def plain_network(precision="float32"):
    keras.utils.set_random_seed(0)
    with computing_in(precision):
        return small_network(keras.optimizers.SGD(0.1), units=8)


class Seen(StatelessHook):
    def measure(self, context):
        flat = {name: tf.unstack(tf.reshape(value, [-1])) for name, value in context.gradients.items()}
        return {f"{name}/{i}": entry for name, entries in flat.items() for i, entry in enumerate(entries)}


def seen_gradients(precision, scale, factor=1.0, objective=Weighted, shrink=1.0, steps=1):
    network = plain_network(precision)
    for name, variable in network.trainable_variables.items():
        if name.endswith("kernel"):
            variable.assign(variable * shrink)
    options = {"objectives": [objective()], "batch": batches_with({}, factor)}
    loop = toy_loop([Seen()], network=network, accumulation_steps=steps, loss_scale=scale, **options)
    assert loop.run(0, 1) == (1, [])
    return np.array([value for name, value in loop.accumulators.read().items() if name.startswith("hidden/kernel")])


def test_hooks_see_true_gradients_below_the_float16_range():
    true, found = seen_gradients("float32", None, 1e-7), seen_gradients("float16", LossScale(), 1e-7)
    assert np.abs(true).max() > 1e-9
    np.testing.assert_allclose(found, true, atol=2e-2 * np.abs(true).max())


class Slope(ToyObjective):
    """Penalize slopes other than 1 of the summed logits by the inputs, times a factor of the batch."""

    def compute(self, forward, batch):
        inputs = tf.stop_gradient(batch["inputs"])
        logits = tf.cast(forward(self.network, inputs), tf.float32)
        (gradient,) = forward.gradients(tf.reduce_sum(logits) * batch["factor"][0], [inputs])
        assert gradient.dtype == tf.float32
        slope = tf.sqrt(tf.reduce_sum(tf.square(gradient), axis=1) + 1e-20)
        losses = {"slope": tf.square(slope - 1.0), "nothing": 0.0 * tf.reduce_sum(logits, axis=1)}  # biases count, too
        return ObjectiveOutput(losses, outputs=logits)


def test_gradients_inside_a_loss_neither_vanish_nor_overflow():
    inside = {"objective": Slope, "shrink": 3e-4}  # the slope is near 1e-7
    true, found = seen_gradients("float32", None, **inside), seen_gradients("float16", LossScale(), steps=2, **inside)
    np.testing.assert_allclose(found, true, atol=5e-2 * np.abs(true).max())
    scale, batch = LossScale(), batches_with({1: OVERFLOW}, default=1e-3)
    loop = half_loop(
        [named(NanGuard(network="model"), "nan_guard")],
        batch=batch,
        network=plain_network("float16"),
        scale=scale,
        objectives=[Slope()],
    )
    assert loop.run(0, 1) == (1, [])
    before = all_values(loop)
    assert loop.run(1, 1) == (2, [])  # the loss itself is infinite here, through no fault of the network
    assert_same_bits(all_values(loop), before)
    assert (float(scale.value), int(scale.overflow_steps)) == (INITIAL / 2, 1)


def test_overflow_halves_the_scale_and_changes_nothing_else():
    scale, batch, guard = LossScale(), batches_with({2: OVERFLOW}), named(NanGuard(network="model"), "nan_guard")
    loop = half_loop([guard], batch=batch, scale=scale, accumulation_steps=2, xla=True)
    assert loop.run(0, 2) == (2, [])
    before = all_values(loop)
    assert loop.run(2, 1) == (3, [])
    assert_same_bits(all_values(loop), before)
    assert (float(scale.value), int(scale.finite_steps), int(scale.overflow_steps)) == (INITIAL / 2, 0, 1)
    assert loop.run(3, 1) == (4, [])
    moved = all_values(loop)
    assert (moved["optimizer/model/iteration"], int(scale.finite_steps)) == (3, 1)
    assert (moved["network/model/toy/hidden/kernel"] != before["network/model/toy/hidden/kernel"]).any()
    assert np.isfinite(list(loop.accumulators.read().values())).all()


def test_scale_doubles_after_enough_finite_steps_up_to_its_ceiling():
    scale = LossScale()
    scale.finite_steps.assign(GROWTH_STEPS - 2)
    for written, expected in ((False, INITIAL), (True, INITIAL), (True, 2 * INITIAL), (True, 2 * INITIAL)):
        scale.update(tf.constant(False), tf.constant(written))
        assert float(scale.value) == expected
    assert int(scale.finite_steps) == 1
    scale.value.assign(CEILING)
    scale.finite_steps.assign(GROWTH_STEPS)
    scale.update(tf.constant(False), tf.constant(True))
    assert float(scale.value) == CEILING


def test_nan_and_overflow_at_the_floor_stop_the_run():
    for value, batch, veto, after in (
        (INITIAL, batches_with({1: math.nan}), "loss/total", (INITIAL, 0)),
        (2.0, batches_with({}, 1e10), "gradient/", (FLOOR, 1)),  # the first overflow took the scale to its floor
    ):
        scale = LossScale()
        scale.value.assign(value)
        step, vetoes = half_loop([named(NanGuard(network="model"), "nan_guard")], batch=batch, scale=scale).run(0, 5)
        assert step == 1
        assert any(name.startswith(veto) for name in vetoes)
        assert (float(scale.value), int(scale.overflow_steps)) == after
    network = toy_network(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(UserError, match="'model' is a LossScaleOptimizer"):
        Trainer([network], [ToyObjective()], [], seed=0, loss_scale=LossScale())


STEPS = 6


def weights():
    found = np.random.default_rng(5).gamma(0.5, size=SIZE).round(2)
    found[4:8] = found[20] = 0.0
    return found.astype(np.float32)


def source():
    inputs, targets = toy_arrays()
    return ArraySource({"inputs": inputs, "targets": targets, SAMPLE_WEIGHTS: weights()}, transform=dict)


def weighted_batch(step):
    return source().gather((step * BATCH + tf.range(BATCH, dtype=tf.int64)) % SIZE)


def loop_with(objective=Weighable, batch=weighted_batch, **settings):
    return toy_loop(network=plain_network(), objectives=[objective()], batch=batch, **settings)


@pytest.mark.parametrize(("by_class", "accumulation_steps"), [(None, 4), (WEIGHTS, 1)], ids=["examples", "classes"])
def test_weighted_steps_and_report_match_keras_fit(by_class, accumulation_steps):
    model, (inputs, targets) = plain_network().model, toy_arrays()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=["accuracy"], jit_compile=False)
    rows = np.arange(STEPS * BATCH) % SIZE
    own = (weights() * (1.0 if by_class is None else np.array(by_class, np.float32)[targets]))[rows]
    fitted = model.fit(inputs[rows], targets[rows], BATCH, sample_weight=own, shuffle=False, verbose=0).history
    given = None if by_class is None else tf.constant(by_class)
    loop = loop_with(accumulation_steps=accumulation_steps, class_weights=given)
    loop.run(0, STEPS)
    for ours, theirs in zip(loop.trainer.networks["model"].model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    if by_class is None:
        reported = loop.accumulators.read()
        assert reported["loss/total"] == pytest.approx(fitted["loss"][0], rel=1e-5)
        assert reported["metric/accuracy"] == pytest.approx(fitted["accuracy"][0], rel=1e-5)


def test_sample_weights_need_one_weight_and_one_loss_per_example():
    class Mean(ToyObjective):
        def compute(self, forward, batch):
            output = super().compute(forward, batch)
            output.losses = {name: tf.reduce_mean(value) for name, value in output.losses.items()}
            return output

    def columns(step):
        batch = weighted_batch(step)
        return {**batch, SAMPLE_WEIGHTS: batch[SAMPLE_WEIGHTS][:, tf.newaxis]}

    for given, word in (({"objective": Mean}, "'objective'.* loss that"), ({"batch": columns}, r"\(16, 1\)")):
        assert_refused(word, loop_with, **given)
