"""Networks without a graph, and a digest of a network's variables, to compare before and after."""

import math

import keras

from hookline.trainer.run.checkpoint_files import tensors_digest
from tests.support.toy import values_of


class Subclassed(keras.Model):
    """One dense layer, without a graph that Keras can see."""

    def __init__(self, activation=None, units=3):
        super().__init__(name="own")
        self.dense = keras.layers.Dense(units, activation=activation, name="dense")

    def call(self, inputs):
        return self.dense(keras.ops.reshape(inputs, (-1, math.prod(inputs.shape[1:]))))


def identity(name, inputs):
    """Stand for a network that returns its inputs."""
    assert name == "model"
    return inputs


def fingerprint(network):
    """Return a digest of all variables of a network: equal as long as no byte has changed."""
    return tensors_digest(values_of(network))
