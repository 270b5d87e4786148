"""Several updates of one objective in a step, what they begin with, and what a veto does to those after it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hookline.trainer.step.copy_network import copy_network, fingerprint
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.pairs import Judge, discriminator, generator, pairs_loop
from tests.support.refusals import assert_refused
from tests.support.toy import (
    BATCH,
    CountingHook,
    StatelessHook,
    ToyObjective,
    build_context,
    toy_batch,
    toy_loop,
    toy_network,
    values_of,
)


def often(updates, objective=None):
    objective = objective or ToyObjective()
    objective.updates = updates
    return objective


def quarter_batch(step):
    """Return a quarter of a toy batch as a batch of its own: step 4k + i holds part i of batch k."""
    whole = toy_batch(step // 4)
    size = BATCH // 4
    start = tf.cast(step % 4, tf.int32) * size
    return {name: tensor[start : start + size] for name, tensor in whole.items()}


def test_updates_of_a_step_equal_as_many_steps_on_its_parts():
    network, twin = toy_network(), toy_network()
    twin.model.set_weights(network.model.get_weights())
    loop = toy_loop(network=network, objectives=[often(4)])
    loop.run(0, 2)
    by_hand = toy_loop(network=twin, batch=quarter_batch)
    by_hand.run(0, 8)
    for name, value in values_of(network).items():
        np.testing.assert_allclose(value, values_of(twin)[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert network.optimizer.iterations.numpy() == 8
    ours, theirs = loop.accumulators.read(), by_hand.accumulators.read()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():  # the averages over all runs
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, err_msg=name)


class Begins(Judge):
    def __init__(self, *arguments, counter, difference):
        super().__init__(*arguments)
        self.counter, self.difference = counter, difference

    def begin(self, networks):
        copies = copy_network(networks["source"], networks["messenger"], optimizer="reset")
        return [*copies, self.counter.assign_add(1).op]

    def compute(self, forward, batch):
        read = forward.passes["messenger"].context.latent["messenger/hidden/kernel"]
        own = forward.passes["source"].context.latent["source/hidden/kernel"]
        self.difference.assign_add(tf.reduce_sum(tf.abs(read - own)))
        return super().compute(forward, batch)


def test_begin_runs_once_for_each_run_and_a_veto_holds_back_all_after_it():
    counter, difference = tf.Variable(0), tf.Variable(0.0)
    networks = [discriminator("source"), discriminator("messenger"), generator("made")]
    networks[-1].fixed = True
    follow = often(2, Begins("follow", "messenger", ["made"], counter=counter, difference=difference))
    objectives = [Judge("judge", "source", ["made"]), follow]
    guard = StatelessHook("guard")
    guard.network, guard.veto = "source", lambda context: {"no": tf.equal(context.step, 2)}
    loop = pairs_loop(networks, objectives, [guard])
    assert counter.numpy() == 0  # tracing runs nothing
    loop.run(0, 2)
    assert (counter.numpy(), difference.numpy()) == (4, 0.0)
    assert [each.optimizer.iterations.numpy() for each in networks] == [2, 1, 0]  # the messenger's is reset, then 1
    before = [fingerprint(network) for network in networks]
    assert loop.run(2, 3) == (2, ["judge/no"])
    assert [fingerprint(network) for network in networks] == before
    assert counter.numpy() == 4


def test_a_veto_in_one_update_holds_back_the_later_ones():
    class Third(StatelessHook):
        def veto(self, context):
            return {"odd": tf.constant(context.update == 1)}

    network = toy_network()
    loop = toy_loop([Third()], network=network, objectives=[often(4)])
    assert loop.run(0, 3) == (0, ["odd"])
    assert network.optimizer.iterations.numpy() == 1
    assert loop.accumulators.variable.numpy()[:, 1].tolist() == [1.0] * len(loop.accumulators.names)


def test_a_batch_that_does_not_divide_is_refused():
    for updates, steps, match in ((3, 1, "updates=3, .*16 examples"), (8, 4, "accumulation_steps=4 .*2 examples")):
        assert_refused(match, toy_loop, objectives=[often(updates)], accumulation_steps=steps)


def test_hooks_update_exactly_once_for_every_optimizer_step():
    networks, hooks = [toy_network("first"), toy_network("second")], [CountingHook("one"), CountingHook("two")]
    networks[0].shared = True
    for network, hook in zip(networks, hooks, strict=True):
        hook.network = network.name
        hook.build(build_context(network))
    hooks[1].veto = lambda context: {"late": tf.equal(context.step, 5)}
    objectives = [ToyObjective("first", "one"), ToyObjective("first", "three"), ToyObjective("second", "two")]
    loop = ChunkLoop(Trainer(networks, objectives, hooks, seed=0, accumulation_steps=4), toy_batch, xla=False)
    for start, steps in ((0, 0), (0, 1), (1, 4)):  # tracing counts nothing
        if steps:
            loop.run(start, steps)
        for network, hook, per_step in zip(networks, hooks, (2, 1), strict=True):
            count = per_step * (start + steps)
            assert network.optimizer.iterations.numpy() == hook.count.numpy() == count
    assert loop.run(5, 2) == (5, ["two/late"])
    assert hooks[1].count.numpy() == 5
