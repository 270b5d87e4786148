"""Several replicas train like one: the same losses, and the same bits on all of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.losses import Loss, Measures
from hookline.recipes.supervised import Head, KerasLoss
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Declaration, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import SAMPLE_WEIGHTS
from hookline.trainer.run.state import share_variables
from hookline.trainer.step.metrics import LossScale
from tests.hooks.test_synchronized_batch_norm import hooks_of
from tests.support.replicas import assert_same_run, replica_loop, trained, values
from tests.support.toy import CLASSES, FEATURES, ToyObjective, toy_batch, toy_network


def weighted_batch(step):
    batch = toy_batch(step)
    padding = tf.cast(tf.range(16) % 5, tf.float32) * tf.cast(tf.range(16) > 3, tf.float32)
    return {**batch, "weights": padding, SAMPLE_WEIGHTS: tf.cast(tf.range(16) % 3, tf.float32)}


def plain_network(optimizer=None):
    layers = [keras.layers.Dense(8, "tanh", name="hidden"), keras.layers.Dense(CLASSES, name="logits")]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers], name="plain")
    return Network("model", model, optimizer or keras.optimizers.Adam(0.01, name="adam"))


def words_batch(step):
    words = tf.constant([[1 + (row + place) % 8 if place <= row % 6 else 0 for place in range(6)] for row in range(16)])
    return {"inputs": words, "targets": tf.cast(words % 3, tf.int64)}


def words_network():
    layers = [keras.layers.Embedding(9, 4, mask_zero=True, name="words"), keras.layers.Dense(3, name="logits")]
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *layers], name="plain")
    return Network("model", model, keras.optimizers.SGD(0.1, name="sgd"))


def words_objective():
    loss = Loss("sparse_categorical_crossentropy")
    measures = Measures(["accuracy"], activation=None, kind=loss.kind)
    return [KerasLoss({"": Head(loss, measures, True, 1.0)}, [""], classes=0, reconstructs=False, uneven=True)]


def test_padding_is_excluded_from_means_over_replicas():
    options = {"network": words_network, "objectives": words_objective, "batch": words_batch}
    one = trained(1, **options)
    assert_same_run(trained(4, **options), one)
    assert_same_run(trained(2, accumulation_steps=2, **options), one)


def test_several_replicas_match_one():  # in micro batches, too, in tests/contract/test_every_graph_hook.py
    options = {"steps": 5, "hooks": hooks_of(), "network": lambda: toy_network(regularizer=0.1)}
    assert_same_run(trained(4, **options), trained(1, **options))
    options = {"batch": weighted_batch, "network": plain_network}
    assert_same_run(trained(2, **options), trained(1, **options))


def test_batch_norm_statistics_are_replica_means_unless_synchronized():
    before = values(replica_loop(1))
    moving, _ = trained(2, steps=1)
    found = moving["network/model/toy/norm/moving_mean"]
    batch = toy_batch(tf.constant(0, tf.int64))["inputs"].numpy()
    hidden = batch @ before["network/model/toy/hidden/kernel"] + before["network/model/toy/hidden/bias"]
    np.testing.assert_allclose(found, 0.01 * hidden.mean(axis=0), rtol=1e-4, atol=1e-6)  # momentum 0.99
    variance = np.mean([hidden[:8].var(axis=0), hidden[8:].var(axis=0)], axis=0)
    np.testing.assert_allclose(moving["network/model/toy/norm/moving_variance"], 0.99 + 0.01 * variance, rtol=1e-4)


def test_dropout_differs_between_replicas_with_one_seed_state():
    def twice(step):
        return {key: tf.concat([value, value], 0) for key, value in half(step).items()}

    def half(step):
        return {key: value[:8] for key, value in toy_batch(step).items()}

    def dropping():
        own = plain_network()
        dropout = keras.layers.Dropout(0.5, seed=3, name="dropout")
        model = keras.Sequential([keras.Input((FEATURES,)), dropout, *own.model.layers], name="dropping")
        return Network("model", model, keras.optimizers.SGD(0.1, name="sgd"))

    # With the same examples in both parts, equal masks would give equal losses, and so the loss of one part.
    found, on_both = trained(2, steps=1, batch=twice, network=dropping)
    other, on_one = trained(1, steps=1, batch=half, network=dropping)
    assert abs(on_both["loss/total"] - on_one["loss/total"]) > 1e-4
    (seed,) = (key for key in found if "seed_generator" in key)
    np.testing.assert_array_equal(found[seed], other[seed])


def test_synchronized_batch_norm_with_micro_batches_is_refused():
    with pytest.raises(UserError, match="trainer.accumulation_steps=1, or hooks.synchronized_batch_norm=null"):
        replica_loop(2, hooks=hooks_of(), accumulation_steps=2)


class Boosted(ToyObjective):
    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.losses["cross_entropy"] *= batch.get("boost", 1.0)
        return output


def test_loss_scale_matches_one_replica_after_an_overflow():
    def scaled(count):
        return replica_loop(
            count, network=plain_network, batch=overflowing, objectives=lambda: [Boosted()], loss_scale=LossScale
        )

    def overflowing(step):
        boost = tf.where(tf.logical_and(step == 1, tf.range(16) == 12), 1e36, 1.0)
        return {**toy_batch(step), "boost": boost}

    loop, single = scaled(2), scaled(1)
    for each in (loop, single):
        assert each.run(0, 3) == (3, [])
    found, expected = values(loop), values(single)
    for key in (key for key in expected if key.startswith("loss_scale/")):
        assert found[key] == expected[key], key
    assert int(loop.trainers[1].loss_scale.overflow_steps) == 1


class Count(GraphHook):
    name = "count"

    def __init__(self):
        self.seen = tf.Variable(0.0)

    def declare(self):
        return Declaration({"seen": self.seen}, writes={"seen": self.seen})

    def batch_sums(self, context):
        return {"zeros": tf.reduce_sum(tf.cast(context.batch["targets"] == 0, tf.float32))}

    def measure(self, context):
        return {"first": tf.reduce_mean(context.batch["inputs"][:, 0])}

    def update_ops(self, context):
        return [self.seen.assign_add(context.sums["count/zeros"])]


def test_batch_sums_reach_the_hooks_of_every_replica():
    found, reported = trained(4, steps=2, hooks=lambda network: [Count()])
    targets = [toy_batch(tf.constant(step, tf.int64))["targets"].numpy() for step in range(2)]
    assert found["hook/count/seen"] == np.sum(np.concatenate(targets) == 0)
    inputs = [toy_batch(tf.constant(step, tf.int64))["inputs"].numpy()[:, 0] for step in range(2)]
    assert reported["first"] == pytest.approx(np.mean(inputs), rel=1e-5)


def test_replicas_written_from_outside_are_synchronized_again():
    loop = replica_loop(2)
    loop.run(0, 2)
    loop.trainer.networks["model"].model.layers[0].kernel.assign_add(tf.ones([FEATURES, 8]))
    with pytest.raises(AssertionError):
        values(loop)
    share_variables(loop.trainers)
    values(loop)
    loop.run(2, 2)
    values(loop)


def test_replicas_that_share_a_variable_are_refused():
    shared = LossScale()
    with pytest.raises(ValueError, match="share a variable or another resource .* wait for each other forever"):
        replica_loop(2, network=plain_network, loss_scale=lambda: shared)
