"""A toy problem: a small network with batch norm and dropout, its data, and a loop over it."""

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.hook import Declaration, GraphHook
from hookline.trainer.network import Network
from hookline.trainer.objective import Objective, ObjectiveOutput
from hookline.trainer.step.context import BuildContext
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from hookline.trainer.step.writes import writes_of

FEATURES, CLASSES, BATCH, SIZE = 6, 3, 16, 64


def toy_arrays():
    """Return inputs [64, 6] float32 and separable targets [64] int64."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(SIZE, FEATURES)).astype(np.float32)
    return inputs, np.argmax(inputs[:, :CLASSES], axis=-1).astype(np.int64)


def toy_batch(step):
    """Return rows step*16 ... of the toy data, wrapping around."""
    inputs, targets = toy_arrays()
    rows = (step * BATCH + tf.range(BATCH, dtype=tf.int64)) % SIZE
    return {"inputs": tf.gather(tf.constant(inputs), rows), "targets": tf.gather(tf.constant(targets), rows)}


def toy_model(*, dropout=0.0, regularizer=0.0):
    """Return Dense, batch norm, (dropout,) Dense with readable layer names."""
    penalty = keras.regularizers.L2(regularizer) if regularizer else None
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(8, name="hidden", kernel_regularizer=penalty),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Activation("tanh", name="activation"),
        *([keras.layers.Dropout(dropout, seed=3, name="dropout")] if dropout else []),
        keras.layers.Dense(CLASSES, name="logits"),
    ]
    return keras.Sequential(layers, name="toy")


def network_of(model, optimizer=None, name="model"):
    """Return a network whose optimizer is built."""
    network = Network(name, model, optimizer or keras.optimizers.SGD(0.1))
    network.optimizer.build(model.trainable_variables)
    return network


def toy_network(name="model", optimizer=None, **arguments):
    return network_of(toy_model(**arguments), optimizer, name)


class ToyObjective(Objective):
    def __init__(self, network="model", name="objective"):
        self.network, self.name, self.trains = network, name, (network,)

    def compute(self, forward, batch):
        logits = forward(self.network, batch["inputs"])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)
        correct = tf.cast(tf.equal(tf.argmax(logits, -1), batch["targets"]), tf.float32)
        return ObjectiveOutput({"cross_entropy": loss}, {"accuracy": correct}, logits)


class StatelessHook(GraphHook):
    def __init__(self, name="probe"):
        self.name = name

    def declare(self):
        return Declaration()


class CountingHook(StatelessHook):
    """Count the steps."""

    def build(self, context):
        self.count = tf.Variable(0.0, trainable=False)

    def declare(self):
        return Declaration({"count": self.count}, writes={"count": self.count})

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]


def build_context(network):
    return BuildContext(network, total_steps=100, steps_per_epoch=4.0, batch_size=BATCH, seed=0)


def toy_loop(hooks=(), *, network=None, batch=toy_batch, xla=False, objectives=(), **settings):
    network = network or toy_network()
    network.shared = len(objectives) > 1
    for hook in hooks:
        hook.build(build_context(network))
    trainer = Trainer([network], list(objectives) or [ToyObjective()], hooks, seed=0, **settings)
    return ChunkLoop(trainer, batch, xla=xla)


def updated(commit, network):
    names = {id(variable.value.handle): name for name, variable in network.variables.items()}
    return sorted(writes_of(commit.update_ops, names))


def values_of(network):
    """Return copies of a network's variables by name, and of its optimizer's as "optimizer/<name>"."""
    named = {**network.variables, **{f"optimizer/{k}": v for k, v in network.optimizer_variables.items()}}
    return {name: np.array(variable.value) for name, variable in named.items()}
