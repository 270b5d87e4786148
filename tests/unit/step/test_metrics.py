"""Averages over examples and over steps."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.toy import toy_loop
from trainer.objective import ObjectiveOutput
from trainer.step.metrics import Accumulators, average_output, example_weights, weighted_mean


def test_padding_does_not_count() -> None:
    value = weighted_mean("loss", tf.constant([1.0, 3.0, 100.0]), tf.constant([1.0, 1.0, 0.0]))
    assert value.numpy() == 2.0


def test_scalar_passes_and_all_padding_gives_zero() -> None:
    assert weighted_mean("loss", tf.constant(4.0), tf.constant([1.0, 0.0])).numpy() == 4.0
    assert weighted_mean("loss", tf.constant([1.0, 2.0]), tf.zeros([2])).numpy() == 0.0


def test_unreduced_loss_is_named() -> None:
    with pytest.raises(ValueError, match="'pixels' has the shape \\(2, 3\\). Expected \\[batch\\] or \\[\\]"):
        weighted_mean("pixels", tf.zeros([2, 3]), tf.ones([2]))


def test_losses_and_metrics_are_averaged_without_weights_too() -> None:
    output = ObjectiveOutput({"a": tf.constant([1.0, 2.0])}, {"b": tf.constant([True, False])})
    losses, metrics = average_output(output, {"inputs": tf.zeros([2, 1])})
    assert losses["a"].numpy() == 1.5
    assert metrics["b"].numpy() == 0.5


@pytest.mark.parametrize("inputs", [{"a": tf.zeros([3, 4]), "b": tf.zeros([3])}, (tf.zeros([3, 4]), tf.zeros([3, 4]))])
def test_examples_are_counted_also_where_inputs_are_several_tensors(inputs) -> None:
    assert example_weights({"inputs": inputs}).numpy().tolist() == [1.0, 1.0, 1.0]


def test_accumulators_average_over_steps_and_leave_out_what_never_counted() -> None:
    accumulators = Accumulators()
    accumulators.names = ["loss", "rare"]
    accumulators.reset()
    accumulators.add(tf.constant([[2.0, 1.0], [0.0, 0.0]]))
    accumulators.add(tf.constant([[4.0, 1.0], [0.0, 0.0]]))
    assert accumulators.read() == {"loss": 3.0}
    accumulators.reset()
    assert accumulators.read() == {}


def test_reports_start_anew_after_a_reset() -> None:
    loop = toy_loop()
    loop.run(0, 5)
    loop.accumulators.reset()
    assert loop.accumulators.read() == {}
    loop.run(5, 2)
    assert set(loop.accumulators.read()) == {"loss/cross_entropy", "loss/total", "metric/accuracy", "grad_norm/before"}


@pytest.mark.parametrize(("given", "expected"), [([[6.0, 2.0]], {"loss": 3.0}), ([[6.0, 2.0], [1.0, 1.0]], {})])
def test_sums_of_other_metrics_are_dropped(given, expected) -> None:
    accumulators = Accumulators()
    accumulators.names = ["loss"]
    accumulators.variable.assign(given)
    accumulators.reset_others()
    assert accumulators.read() == expected
