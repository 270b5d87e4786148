"""Seeds: fresh where they must be, the same where they must be."""

from dataclasses import replace

import numpy as np
import tensorflow as tf

from hookline.trainer.replicas.replica import Replica
from hookline.trainer.step.context import StepContext
from tests.support.networks import fingerprint
from tests.support.pairs import Judge, discriminator, pairs_loop
from tests.support.toy import BATCH, ToyObjective, toy_network


class Notes(ToyObjective):
    def __init__(self, network, name, updates=1):
        super().__init__(network, name)
        self.updates = updates
        self.noted = tf.Variable(tf.zeros([0, 2], tf.int32), shape=[None, 2], trainable=False)

    def compute(self, forward, batch):
        if forward.training:
            self.noted.assign(tf.concat([self.noted, forward.stateless_seed("noise")[None]], 0))
        return super().compute(forward, batch)

    @property
    def rows(self):
        return [tuple(row) for row in self.noted.numpy().tolist()]


def test_seeds_differ_by_step_update_objective_and_salt():
    objectives = [Notes("a", "one", 2), Notes("b", "two")]
    pairs_loop([toy_network("a"), toy_network("b")], objectives).run(0, 3)
    seen = objectives[0].rows + objectives[1].rows
    assert len(seen) == len(set(seen)) == 9
    whole = StepContext(tf.constant(5, tf.int64), 0, True, "one", None, {})
    others = [replace(whole, micro_batch=tf.constant(index)) for index in range(3)]
    others += [replace(whole, seed=1), replace(whole, replica=Replica(1, 2))]
    seeds = [whole.objective_seed("labels"), *(each.objective_seed("noise") for each in (whole, *others))]
    assert len({tuple(seed.numpy()) for seed in seeds}) == 7


def test_seed_does_not_depend_on_other_objectives_networks_or_chunks():
    alone, beside = Notes("a", "one"), Notes("a", "one")
    pairs_loop([toy_network("a")], [alone]).run(0, 4)
    loop = pairs_loop([toy_network("b"), toy_network("a")], [ToyObjective("b", "other"), beside])
    loop.run(0, 1)
    loop.run(1, 3)
    assert alone.rows == beside.rows


class Watches(Judge):
    """Train a network while calling twice another one with dropout, which the objective does not own."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        ones = tf.ones([BATCH, 6])
        first, second = forward("borrowed", ones), forward("borrowed", ones)
        output.losses["judged"] = tf.reduce_mean(first)
        self.seen.assign(tf.concat([self.seen, tf.transpose(first), tf.transpose(second)], 0))
        return output


def test_borrowed_network_draws_new_dropout_in_every_call():
    own, borrowed = discriminator("own"), discriminator("borrowed")
    borrowed.model.set_weights([np.linspace(0.1, 1.0, w.size).reshape(w.shape) for w in borrowed.model.get_weights()])
    borrowed.fixed = True
    borrowed.model.get_layer("norm").trainable = False
    watches = Watches("watches", "own", [])
    watches.updates, watches.seen = 2, tf.Variable(tf.zeros([0, BATCH]), shape=[None, BATCH], trainable=False)
    before = fingerprint(borrowed)
    pairs_loop([own, borrowed], [watches]).run(0, 2)
    assert fingerprint(borrowed) == before
    seen = watches.seen.numpy()
    assert seen.shape == (8, BATCH)
    assert len({row.tobytes() for row in seen}) == len(seen)
