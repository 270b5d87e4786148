"""Two tiny networks that play each other, with every kind of state: batch norm, dropout, slots of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, ForwardFunction, Objective, ObjectiveOutput
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import FEATURES, toy_batch

NOISE = 2


def generator(name: str, optimizer: keras.optimizers.Optimizer | None = None) -> Network:
    """Return a network from noise [batch, 2] to samples [batch, 6], with batch norm."""
    return _network(name, NOISE, FEATURES, optimizer)


def discriminator(name: str, optimizer: keras.optimizers.Optimizer | None = None) -> Network:
    """Return a network from samples [batch, 6] to logits [batch, 1], with batch norm and dropout."""
    return _network(name, FEATURES, 1, optimizer, dropout=0.5)


def _network(
    name: str, inputs: int, outputs: int, optimizer: keras.optimizers.Optimizer | None, dropout: float = 0.0
) -> Network:
    layers = [
        keras.Input((inputs,)),
        keras.layers.Dense(5, name="hidden"),
        keras.layers.BatchNormalization(name="norm"),
        *([keras.layers.Dropout(dropout, name="dropout")] if dropout else []),
        keras.layers.Dense(outputs, name="last"),
    ]
    network = Network(name, keras.Sequential(layers, name=name), optimizer or keras.optimizers.Adam(0.05))
    network.optimizer.build(network.model.trainable_variables)
    return network


class Judge(Objective):
    """Train a discriminator to tell the data from what generators make."""

    def __init__(self, name: str, network: str, generators: Sequence[str]) -> None:
        self.name, self.network, self.generators, self.trains = name, network, tuple(generators), (network,)

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        losses = {"real": tf.nn.softplus(-forward(self.network, batch["inputs"])[:, 0])}
        for made in self.generators:
            losses[made] = tf.nn.softplus(forward(self.network, samples(forward, made, batch))[:, 0])
        return ObjectiveOutput(losses)


class Fool(Objective):
    """Train a generator to be taken for data by discriminators."""

    def __init__(self, name: str, network: str, judges: Sequence[str]) -> None:
        self.name, self.network, self.judges, self.trains = name, network, tuple(judges), (network,)

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        made = samples(forward, self.network, batch)
        return ObjectiveOutput({judge: tf.nn.softplus(-forward(judge, made)[:, 0]) for judge in self.judges})


def samples(forward: ForwardFunction, network: str, batch: Batch) -> tf.Tensor:
    """Return what a generator makes of the objective's own noise, one for each example."""
    noise = tf.random.stateless_normal([tf.shape(batch["inputs"])[0], NOISE], forward.stateless_seed(network))
    return forward(network, noise)


def pairs_loop(
    networks: Sequence[Network],
    objectives: Sequence[Objective],
    hooks: Sequence[GraphHook] = (),
    *,
    xla: bool = False,
    batch: Callable[[tf.Tensor], Batch] = toy_batch,
    accumulation_steps: int = 1,
    seed: int = 0,
) -> ChunkLoop:
    """Return a traced and audited loop."""
    trainer = Trainer(networks, objectives, hooks, seed=seed, accumulation_steps=accumulation_steps)
    return ChunkLoop(trainer, batch, xla=xla)
