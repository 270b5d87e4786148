"""Averages over examples and over steps."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hookline.trainer.objective import ObjectiveOutput
from hookline.trainer.step.metrics import Accumulators, average_output, example_weights, weighted_mean


def test_padding_does_not_count() -> None:
    def mean(values, weights):
        return weighted_mean("pixels", tf.constant(values), tf.constant(weights)).numpy()

    assert mean([1.0, 3.0, 100.0], [1.0, 1.0, 0.0]) == 2.0
    assert mean(4.0, [1.0, 0.0]) == 4.0
    assert mean([1.0, 2.0], [0.0, 0.0]) == 0.0
    with pytest.raises(ValueError, match="'pixels'"):
        mean([[1.0, 2.0]], [1.0])
    output = ObjectiveOutput({"a": tf.constant([1.0, 2.0])}, {"b": tf.constant([True, False])})
    losses, metrics = average_output(output, {"inputs": tf.zeros([2, 1])})  # without weights
    assert (losses["a"].numpy(), metrics["b"].numpy()) == (1.5, 0.5)
    for inputs in ({"a": tf.zeros([3, 4]), "b": tf.zeros([3])}, (tf.zeros([3, 4]), tf.zeros([3, 4]))):
        assert example_weights({"inputs": inputs}).numpy().tolist() == [1.0, 1.0, 1.0]


def test_accumulators_average_over_steps_and_leave_out_what_never_counted() -> None:
    accumulators = Accumulators()
    accumulators.names = ["loss", "rare"]
    accumulators.reset()
    accumulators.add(tf.constant([[2.0, 1.0], [0.0, 0.0]]))
    accumulators.add(tf.constant([[4.0, 1.0], [0.0, 0.0]]))
    assert accumulators.read() == {"loss": 3.0}
    accumulators.reset_others()
    assert accumulators.read() == {"loss": 3.0}
    accumulators.names = ["loss"]
    accumulators.reset_others()  # the sums of a run with other metrics
    assert accumulators.read() == {}
