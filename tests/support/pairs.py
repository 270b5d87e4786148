"""Two tiny networks that play each other, with every kind of state: batch norm, dropout, optimizer slots."""

import keras
import tensorflow as tf

from hookline.trainer.objective import Objective, ObjectiveOutput
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import FEATURES, network_of, toy_batch

NOISE = 2


def generator(name, optimizer=None):
    """Return a network from noise [batch, 2] to samples [batch, 6], with batch norm."""
    return _network(name, NOISE, FEATURES, optimizer)


def discriminator(name, optimizer=None):
    """Return a network from samples [batch, 6] to logits [batch, 1], with batch norm and dropout."""
    return _network(name, FEATURES, 1, optimizer, dropout=0.5)


def _network(name, inputs, outputs, optimizer, dropout=0.0):
    layers = [
        keras.Input((inputs,)),
        keras.layers.Dense(5, name="hidden"),
        keras.layers.BatchNormalization(name="norm"),
        *([keras.layers.Dropout(dropout, name="dropout")] if dropout else []),
        keras.layers.Dense(outputs, name="last"),
    ]
    return network_of(keras.Sequential(layers, name=name), optimizer or keras.optimizers.Adam(0.05), name)


class Judge(Objective):
    def __init__(self, name, network, generators):
        self.name, self.network, self.generators, self.trains = name, network, tuple(generators), (network,)

    def compute(self, forward, batch):
        losses = {"real": tf.nn.softplus(-forward(self.network, batch["inputs"])[:, 0])}
        for made in self.generators:
            losses[made] = tf.nn.softplus(forward(self.network, samples(forward, made, batch))[:, 0])
        return ObjectiveOutput(losses)


def samples(forward, network, batch):
    noise = tf.random.stateless_normal([tf.shape(batch["inputs"])[0], NOISE], forward.stateless_seed(network))
    return forward(network, noise)


def pairs_loop(networks, objectives, hooks=(), *, xla=False):
    return ChunkLoop(Trainer(networks, objectives, hooks, seed=0), toy_batch, xla=xla)
