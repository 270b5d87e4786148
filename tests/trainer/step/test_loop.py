"""The traced loop: chunks of any size give the same run, and a veto stops it with nothing written."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.hook import Declaration
from tests.support.toy import StatelessHook, toy_batch, toy_loop, toy_network, values_of


def fresh():
    keras.utils.set_random_seed(1)
    return toy_network(optimizer=keras.optimizers.Adam(0.01), dropout=0.3)


def test_chunk_sizes_do_not_change_the_run() -> None:
    whole, parts = fresh(), fresh()
    parts.model.set_weights(whole.model.get_weights())
    one = toy_loop(network=whole)
    many = toy_loop(network=parts)
    assert one.run(0, 10) == (10, [])
    for start, steps in ((0, 1), (1, 4), (5, 5)):
        many.run(start, steps)
    for ours, theirs in zip(values_of(whole).values(), values_of(parts).values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert one.accumulators.read() == many.accumulators.read()


class VetoAt(StatelessHook):
    """Hold back one step."""

    def __init__(self, step: int) -> None:
        super().__init__("veto")
        self.step = step

    def build(self, context):
        self.count = tf.Variable(0.0, trainable=False)

    def declare(self):
        return Declaration({"count": self.count})

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]

    def veto(self, context):
        return {"never": tf.constant(False), "at": tf.equal(context.step, self.step)}

    def project(self, context):
        for variable in context.network.trainable_variables.values():
            variable.assign(variable.value * 0.999)

    def measure(self, context):
        return {"one": tf.constant(1.0)}


@pytest.mark.parametrize("xla", [False, True])
def test_vetoed_step_writes_nothing_at_all(xla: bool) -> None:
    stopped, reference = fresh(), fresh()
    reference.model.set_weights(stopped.model.get_weights())
    hook, other = VetoAt(5), VetoAt(-1)
    loop = toy_loop([hook], network=stopped, xla=xla)
    assert loop.run(0, 20) == (5, ["at"])
    toy_loop([other], network=reference, xla=xla).run(0, 5)
    assert hook.count.numpy() == other.count.numpy() == 5.0
    assert loop.accumulators.variable.numpy()[:, 1].tolist() == [5.0] * len(loop.accumulators.names)
    for name, value in values_of(stopped).items():
        np.testing.assert_array_equal(value, values_of(reference)[name], err_msg=name)


def pause(tensor: tf.Tensor, seconds: float) -> tf.Tensor:
    """Return a tensor, late."""

    def late(value):
        time.sleep(seconds)
        return value

    delayed = tf.numpy_function(late, [tensor], tensor.dtype)
    delayed.set_shape(tensor.shape)
    return delayed


def waiting_share(loop, steps: int) -> float:
    loop.run(0, 1)
    start = time.perf_counter()
    loop.run(1, steps)
    return loop.waited / (time.perf_counter() - start)


def test_the_time_spent_waiting_for_batches_is_that_of_a_slow_source() -> None:
    def slow_batch(step):
        batch = toy_batch(step)
        return {**batch, "inputs": pause(batch["inputs"], 0.03)}

    slow, ready = StatelessHook("slow"), toy_batch(tf.constant(0, tf.int64))
    slow.add_losses = lambda context: {"late": 0.0 * pause(tf.reduce_mean(context.outputs), 0.03)}
    assert 0.9 < waiting_share(toy_loop(batch=slow_batch), 10) <= 1.0
    assert 0.4 < waiting_share(toy_loop([slow], batch=slow_batch), 10) < 0.6
    assert waiting_share(toy_loop([slow], batch=lambda step: ready), 10) < 0.1
