"""The traced loop: chunks of any size give the same run, and a veto stops it with nothing written."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import StatelessHook, toy_batch, toy_loop, toy_network, values_of
from trainer.step.audit import ancestors


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


def test_xla_gives_the_same_losses() -> None:
    plain, compiled = toy_network(), toy_network()
    compiled.model.set_weights(plain.model.get_weights())
    loops = toy_loop(network=plain), toy_loop(network=compiled, xla=True)
    for loop in loops:
        loop.run(0, 20)
    ours, theirs = (loop.accumulators.read() for loop in loops)
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_training_reduces_the_loss() -> None:
    loop = toy_loop()
    loop.run(0, 4)
    first = loop.accumulators.read()["loss/total"]
    loop.accumulators.reset()
    loop.run(4, 60)
    loop.accumulators.reset()
    loop.run(64, 4)
    assert loop.accumulators.read()["loss/total"] < 0.5 * first


class VetoAt(StatelessHook):
    """Hold back one step."""

    def __init__(self, step: int) -> None:
        super().__init__("veto")
        self.step = step

    def build(self, context):
        self.count = tf.Variable(0.0, trainable=False)

    def state(self):
        return {"count": self.count}

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
    for name, value in values_of(stopped).items():
        np.testing.assert_array_equal(value, values_of(reference)[name], err_msg=name)


def test_vetoed_step_does_not_count_in_the_metrics() -> None:
    loop = toy_loop([VetoAt(3)])
    loop.run(0, 10)
    assert loop.accumulators.variable.numpy()[:, 1].tolist() == [3.0] * len(loop.accumulators.names)


def test_hook_without_veto_leaves_no_branch_in_the_graph() -> None:
    def branches(loop) -> int:
        graph = loop.trainer.commits[0].graph
        return sum("unless_vetoed" in str(getattr(each, "name", "")) for each in (graph,))

    assert branches(toy_loop()) == 0
    assert branches(toy_loop([VetoAt(3)])) == 1


def test_batches_may_come_from_an_iterator() -> None:
    network, twin = toy_network(), toy_network()
    twin.model.set_weights(network.model.get_weights())
    iterator = iter(tf.data.Dataset.range(100).map(toy_batch))
    toy_loop(network=network, batch=lambda step: next(iterator)).run(0, 9)
    toy_loop(network=twin).run(0, 9)
    for ours, theirs in zip(network.model.get_weights(), twin.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def pause(tensor: tf.Tensor, seconds: float) -> tf.Tensor:
    """Return a tensor, late."""

    def late(value):
        time.sleep(seconds)
        return value

    delayed = tf.numpy_function(late, [tensor], tensor.dtype)
    delayed.set_shape(tensor.shape)
    return delayed


class SlowLoss(StatelessHook):
    """Make every step last some time."""

    def __init__(self, seconds: float) -> None:
        super().__init__("slow_loss")
        self.seconds = seconds

    def add_losses(self, context):
        return {"late": 0.0 * pause(tf.reduce_mean(context.outputs), self.seconds)}


def waiting_share(loop, steps: int) -> float:
    loop.run(0, 1)
    start = time.perf_counter()
    loop.run(1, steps)
    return loop.waited / (time.perf_counter() - start)


def test_the_time_spent_waiting_for_batches_is_that_of_a_slow_source() -> None:
    def slow_batch(step):
        batch = toy_batch(step)
        return {**batch, "inputs": pause(batch["inputs"], 0.03)}

    assert 0.9 < waiting_share(toy_loop(batch=slow_batch), 10) <= 1.0
    alike = waiting_share(toy_loop([SlowLoss(0.03)], batch=slow_batch), 10)
    assert 0.4 < alike < 0.6


def test_the_time_of_a_slow_step_is_not_taken_for_waiting() -> None:
    batch = toy_batch(tf.constant(0, tf.int64))
    loop = toy_loop([SlowLoss(0.02)], batch=lambda step: batch)
    assert waiting_share(loop, 10) < 0.1
    loop.run(11, 1)
    assert 0.0 <= loop.waited < 0.01  # of the latest chunk alone


def test_batches_that_were_made_ahead_are_not_waited_for() -> None:
    slow = tf.data.Dataset.range(100).map(lambda step: {**toy_batch(step), "late": pause(step, 0.01)})
    iterator = iter(slow.prefetch(4))
    assert waiting_share(toy_loop([SlowLoss(0.03)], batch=lambda step: next(iterator)), 10) < 0.2


def test_the_clock_stands_between_the_work() -> None:
    """A clock that is merely asked for takes its turn behind what is ready, and then counts that as waiting."""
    made = []

    def batch(step):
        found = toy_batch(step)
        made.append([tensor.op for tensor in found.values()])
        return found

    loop = toy_loop(batch=batch)
    commit = loop.trainer.commits[0]
    asked, ready = (each for each in commit.graph.get_operations() if each.type == "Timestamp")
    assert all(asked in ancestors(operation) for operation in made[-1])
    assert set(made[-1]) <= ancestors(ready)
    applied = {operation for operations in commit.apply_ops.values() for operation in operations}
    assert applied
    assert all(ready in ancestors(operation) for operation in applied)
    (waited,) = [output for output in commit.graph.outputs if output.dtype == tf.float64]
    assert applied <= ancestors(waited.op)
