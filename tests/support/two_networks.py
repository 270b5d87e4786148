"""Two networks called generator and discriminator, each with its own objective: a recipe to run hooks on."""

import keras
import tensorflow as tf

from hookline.trainer.network import Network
from hookline.trainer.recipe import Recipe
from tests.support.toy import ToyObjective

NAMES = ("generator", "discriminator")


class Watching(ToyObjective):
    """Train one network on the classes, and run another one beside it."""

    def __init__(self, network, other):
        super().__init__(network, f"train_{network}")
        self.other = other

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        logits = tf.stop_gradient(forward(self.other, batch["inputs"]))
        right = tf.equal(tf.argmax(logits, -1), tf.cast(batch["targets"], tf.int64))
        output.metrics["other_accuracy"] = tf.cast(right, tf.float32)
        return output


def watching_pair():
    generator, discriminator = NAMES
    return [Watching(discriminator, generator), Watching(generator, discriminator)]


def two_networks(*, parts, label_smoothing=0.0):
    assert label_smoothing == 0.0
    shape, classes = parts.data.input_shape, parts.data.classes
    networks = [
        Network(name, parts.build_model(input_shape=shape, classes=classes), parts.build_optimizer()) for name in NAMES
    ]
    return Recipe(networks, watching_pair())


def fresh(build, names=NAMES):
    networks = []
    for name in names:
        keras.utils.set_random_seed(len(name))
        networks.append(Network(name, build(), keras.optimizers.Adam(0.01)))
    return networks
