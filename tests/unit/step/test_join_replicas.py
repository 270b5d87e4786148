"""What replicas join: means of what comes from examples, one seed state, and no state without a mean."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.replicas import on_replicas, replica_loop, run_on_each
from tests.support.toy import CLASSES, FEATURES
from trainer.errors import UserError
from trainer.network import Network
from trainer.replicas.replica import Replica
from trainer.step.join_replicas import join_replicas, mean_over_batch
from trainer.step.metrics import Computed


def batch_of(weights: list[float] | None = None) -> dict[str, tf.Tensor]:
    batch = {"inputs": tf.zeros([2, 1])}
    return batch if weights is None else {**batch, "weights": tf.constant(weights)}


def context_of(index: int, weights: list[float] | None = None) -> SimpleNamespace:
    """Return what the pass of a replica left: a statistic and nothing drawn."""
    network = SimpleNamespace(state_variables={"norm/mean": None}, weights={"norm/mean": None})
    state = {"norm/mean": tf.constant([float(index)])}
    return SimpleNamespace(network=network, new_state=state, losses=None, batch=batch_of(weights))


def joined(weights: tuple[list[float], list[float]] | None):
    def compute(replica: Replica):
        one = float(replica.index)
        context = context_of(replica.index, None if weights is None else weights[replica.index])
        computed = Computed({"total": tf.constant(10.0 * one)}, {"accuracy": tf.constant(one)}, {})
        gradients = {"model": {"kernel": tf.constant([one, 4.0]), "unused": None}}
        found = join_replicas(replica, gradients, {"model": context}, computed)
        assert found["model"]["unused"] is None
        assert context.losses is computed.losses
        return {
            "kernel": found["model"]["kernel"],
            "total": computed.losses["total"],
            "accuracy": computed.metrics["accuracy"],
            "mean": context.new_state["norm/mean"],
        }

    return run_on_each(on_replicas(2), compute)


def test_gradients_losses_metrics_and_statistics_become_means() -> None:
    for found in joined(None):
        np.testing.assert_array_equal(found["kernel"], [0.5, 4.0])
        assert (found["total"], found["accuracy"], found["mean"][0]) == (5.0, 0.5, 0.5)


def test_weights_of_examples_weigh_what_comes_from_examples_and_not_statistics() -> None:
    for found in joined(([1.0, 0.0], [2.0, 1.0])):
        np.testing.assert_allclose(found["kernel"], [0.75, 4.0])
        assert (found["total"], found["accuracy"], found["mean"][0]) == (7.5, 0.75, 0.5)


def test_a_batch_of_padding_alone_gives_zeros() -> None:
    for found in joined(([0.0, 0.0], [0.0, 0.0])):
        np.testing.assert_array_equal(found["kernel"], [0.0, 0.0])
        assert found["mean"][0] == 0.5


def test_the_only_replica_keeps_what_it_has() -> None:
    gradients, computed = {"model": {"kernel": tf.constant(1.0)}}, Computed({}, {}, {})
    assert join_replicas(Replica(), gradients, {"model": context_of(0)}, computed) is gradients
    value = tf.constant(2.0)
    assert mean_over_batch(Replica(), batch_of([1.0, 2.0]), [value]) == [value]


class Counting(keras.layers.Layer):
    """Count the examples above 0 in a whole number, which each replica would count for itself."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(), dtype="int32", trainable=False, initializer="zeros", name="seen")

    def call(self, inputs):
        self.seen.assign_add(tf.math.count_nonzero(inputs[:, 0] > 0, dtype=tf.int32))
        return inputs


def counting_network() -> Network:
    layers = [Counting(name="counting"), keras.layers.Dense(CLASSES, name="logits")]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers], name="net")
    return Network("model", model, keras.optimizers.SGD(0.1, name="sgd"))


def test_state_of_which_there_is_no_mean_is_refused_on_several_replicas() -> None:
    with pytest.raises(UserError, match="writes 'net/counting/seen', int32, of which 2 replicas cannot take a mean"):
        replica_loop(2, network=counting_network)
    assert replica_loop(1, network=counting_network).run(0, 1) == (1, [])
