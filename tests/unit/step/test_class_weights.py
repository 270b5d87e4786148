"""Losses that weigh by class: as Keras's class_weight, in training alone, and mixed with mixed examples."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.objective import SOFT_TARGETS
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.losses import weigh_losses
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import BATCH, SIZE, ToyObjective, toy_batch, toy_network

WEIGHTS = [3.0, 0.5, 0.0]


class Weighable(ToyObjective):
    """A toy objective whose loss is of a class."""

    class_losses = ("cross_entropy",)


def weighted_loop(weights=WEIGHTS, objective=Weighable) -> ChunkLoop:
    keras.utils.set_random_seed(1)
    vector = None if weights is None else tf.constant(weights)
    return ChunkLoop(Trainer([toy_network()], [objective()], [], seed=0, class_weights=vector), toy_batch, xla=False)


def test_an_example_weighs_as_its_class_or_their_mixture() -> None:
    losses = {"cross_entropy": tf.constant([1.0, 2.0, 4.0], tf.float16), "domain": tf.constant([1.0, 1.0, 1.0])}
    batch = {"inputs": tf.zeros([3, 1]), "targets": tf.constant([0, 2, 1])}
    found = weigh_losses(Weighable(), losses, batch, tf.constant(WEIGHTS))
    assert found["cross_entropy"].dtype == tf.float16
    np.testing.assert_array_equal(found["cross_entropy"], [3.0, 0.0, 2.0])
    np.testing.assert_array_equal(found["domain"], [1.0, 1.0, 1.0])
    mixed = {"inputs": tf.zeros([2, 1]), SOFT_TARGETS: tf.constant([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])}
    found = weigh_losses(Weighable(), {"cross_entropy": tf.constant([2.0, 10.0])}, mixed, tf.constant(WEIGHTS))
    np.testing.assert_allclose(found["cross_entropy"], [3.5, 1.0])
    with pytest.raises(UserError, match="'objective'"):
        weighted_loop(objective=ToyObjective)


def test_a_step_is_that_of_keras_with_class_weight() -> None:
    loop = weighted_loop()
    network = loop.trainer.networks["model"]
    twin = toy_network().model
    twin.set_weights(network.model.get_weights())
    twin.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loop.run(0, 1)
    batch = toy_batch(tf.constant(0, tf.int64))
    twin.fit(batch["inputs"], batch["targets"], batch_size=BATCH, class_weight=dict(enumerate(WEIGHTS)), verbose=0)
    for ours, theirs in zip(network.model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_metrics_and_evaluations_do_not_weigh() -> None:
    weighted, plain = weighted_loop(), weighted_loop(None)
    for loop in (weighted, plain):
        loop.run(0, 1)
    ours, theirs = weighted.accumulators.read(), plain.accumulators.read()
    assert ours["metric/accuracy"] == theirs["metric/accuracy"]
    assert ours["loss/total"] == ours["loss/cross_entropy"] != pytest.approx(theirs["loss/total"], rel=1e-3)
    weighted.trainer.networks["model"].model.set_weights(plain.trainer.networks["model"].model.get_weights())
    found = [Evaluator(loop.trainer, toy_batch, SIZE // BATCH).run(1) for loop in (weighted, plain)]
    assert found[0] == found[1]
