"""Networks without a graph, and what a network holds, to compare before and after."""

import keras
import numpy as np

from hookline.trainer.run.checkpoint_files import tensors_digest


class Subclassed(keras.Model):
    """Hide a graph of one dense layer."""

    def __init__(self, activation=None):
        super().__init__(name="own")
        self.dense = keras.layers.Dense(3, activation=activation, name="dense")

    def call(self, inputs):
        return self.dense(inputs)


def identity(name, inputs):
    """Stand for a network that returns its inputs."""
    assert name == "model"
    return inputs


def snapshot(network):
    """Return copies of a network's variables by name, and of its optimizer's as "optimizer/<name>"."""
    optimizer = {f"optimizer/{name}": variable for name, variable in network.optimizer_variables.items()}
    return {name: np.array(variable.value.numpy()) for name, variable in {**network.variables, **optimizer}.items()}


def fingerprint(network):
    """Return a digest of all that a network holds: equal as long as no byte of it has changed."""
    return tensors_digest(snapshot(network))
