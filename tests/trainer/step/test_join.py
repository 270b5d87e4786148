"""What replicas join: means of what comes from examples, one seed state, and no state without a mean."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.step.join import join_replicas
from hookline.trainer.step.metrics import Computed
from tests.support.replicas import on_replicas, run_on_each


def batch_of(weights=None):
    batch = {"inputs": tf.zeros([2, 1])}
    return batch if weights is None else {**batch, "weights": tf.constant(weights)}


def context_of(index, weights=None):
    """Return what the pass of a replica left: a statistic and nothing drawn."""
    network = SimpleNamespace(state_variables={"norm/mean": None}, weights={"norm/mean": None})
    state = {"norm/mean": tf.constant([float(index)])}
    return SimpleNamespace(network=network, new_state=state, losses=None, batch=batch_of(weights))


def joined(weights):
    def compute(replica):
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


@pytest.mark.parametrize(
    ("weights", "kernel", "total", "accuracy"),
    [(None, 0.5, 5.0, 0.5), (([1.0, 0.0], [2.0, 1.0]), 0.75, 7.5, 0.75), (([0.0, 0.0], [0.0, 0.0]), 0.0, 0.0, 0.0)],
    ids=["none", "weighted", "padding"],
)
def test_what_comes_from_examples_is_weighed_and_statistics_are_means(weights, kernel, total, accuracy):
    for found in joined(weights):
        np.testing.assert_allclose(found["kernel"], [kernel, 0.0 if accuracy == 0.0 else 4.0])
        assert (found["total"], found["accuracy"], found["mean"][0]) == (total, accuracy, 0.5)
