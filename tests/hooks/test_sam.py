"""Sharpness-aware minimization against Keras by hand: only the gradient comes from the second pass."""

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.frozen_mask import FrozenMask
from hookline.hooks.sam import Sam
from hookline.trainer.objective import ObjectiveOutput
from hookline.trainer.step.metrics import LossScale
from tests.support.hooked import named
from tests.support.toy import ToyObjective, toy_batch, toy_loop, toy_network, values_of


def make(*hooks, radius: float = 0.5, climbs: bool = True, **options):
    keras.utils.set_random_seed(0)
    hook = named(Sam(radius=radius))
    network = toy_network(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), dropout=0.3, regularizer=0.01)
    return network, toy_loop([hook, *hooks] if climbs else hooks, network=network, **options)


def by_hand(network, steps: int, radius: float) -> None:
    """Take SGD steps with Keras, eagerly: two passes with the same draws, statistics from the first."""
    model, (drawn,) = network.model, [v for v in network.model.variables if "seed" in v.path]
    state = [each for each in model.non_trainable_variables if each is not drawn]

    def gradients(batch):
        with tf.GradientTape() as tape:
            logits = model(batch["inputs"], training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)
            total = tf.reduce_mean(losses) + tf.add_n(model.losses)
        return tape.gradient(total, [each.value for each in model.trainable_variables])

    for step in range(steps):
        batch, seed = toy_batch(tf.constant(step, tf.int64)), np.array(drawn)
        first = gradients(batch)
        after, weights = [np.array(each) for each in state], [np.array(each) for each in model.trainable_variables]
        norm = np.sqrt(sum(np.square(each.numpy(), dtype=np.float64).sum() for each in first))
        for variable, gradient in zip(model.trainable_variables, first, strict=True):
            variable.assign_add(radius * gradient / norm)
        drawn.assign(seed)
        second = gradients(batch)
        for variable, value in zip([*state, *model.trainable_variables], [*after, *weights], strict=True):
            variable.assign(value)
        network.optimizer.apply(second, model.trainable_variables)


def test_steps_match_two_passes_by_hand():
    network, loop = make()
    twin, _ = make()
    loop.run(0, 3)
    by_hand(twin, 3, 0.5)
    found = values_of(network)
    for name, value in values_of(twin).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_statistics_draws_and_losses_match_a_step_without_sam():
    found = []
    for climbs in (True, False):
        network, loop = make(climbs=climbs, accumulation_steps=2)
        loop.run(0, 1)
        values, reports = values_of(network), loop.accumulators.read()
        state = [value for name, value in values.items() if "moving" in name or "seed" in name]
        assert len(state) == 3
        found.append([*state, reports["loss/total"], reports["metric/accuracy"], values["toy/hidden/kernel"]])
    (*alike, trained), (*plain, other) = found
    np.testing.assert_equal(alike, plain)
    assert (trained != other).any()


def test_masks_of_other_hooks_come_from_the_first_pass():
    freeze = named(FrozenMask(masks="magnitude", fraction=0.5, begin_epoch=0.5))
    network, loop = make(freeze, radius=50.0)  # so far that other entries are the largest
    loop.run(0, 2)
    before = np.abs(values_of(network)["toy/hidden/kernel"])
    loop.run(2, 1)
    mask = freeze.declare().state["mask/toy/hidden/kernel"].numpy()
    assert before[mask].min() >= before[~mask].max()


class Steep(ToyObjective):
    """An objective whose gradients overflow at a large loss scale."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        return ObjectiveOutput({name: each * 1e4 for name, each in output.losses.items()}, outputs=output.outputs)


def test_overflow_in_the_first_pass_skips_the_step():
    keras.utils.set_random_seed(0)
    network, scale = toy_network(), LossScale()
    scale.value.assign(2.0**120)
    loop = toy_loop([named(Sam())], network=network, objectives=[Steep()], loss_scale=scale)
    before = values_of(network)
    assert loop.run(0, 1) == (1, [])
    assert float(scale.value) == 2.0**119
    assert all((value == before[name]).all() for name, value in values_of(network).items())
    loop.run(1, 60)
    assert (values_of(network)["toy/hidden/kernel"] != before["toy/hidden/kernel"]).any()
    assert all(np.isfinite(value).all() for value in values_of(network).values())


def test_weights_without_gradients_or_with_zero_gradients_do_not_climb():
    gradients = {"a": tf.constant([3.0, 0.0]), "b": None, "c": tf.constant([[4.0]])}
    context = type("Context", (), {"gradients": gradients})()
    latent = {"a": tf.ones([2]), "b": tf.ones([1]), "c": tf.ones([1, 1])}
    moved = Sam(radius=0.5).gradient_point(latent, context)
    np.testing.assert_allclose(moved["a"], [1.3, 1.0])
    np.testing.assert_allclose(moved["c"], [[1.4]])
    assert moved["b"] is latent["b"]
    context.gradients = {"a": tf.zeros([2]), "b": None, "c": tf.zeros([1, 1])}
    assert all((each.numpy() == 1).all() for each in Sam().gradient_point(latent, context).values())
