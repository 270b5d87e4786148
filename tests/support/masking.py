"""What tests of masks share: a small network, loops over hooks that read one another, a maker of masks, bits."""

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.hook import Declaration
from tests.support.hooked import built, hooked
from tests.support.toy import CLASSES, FEATURES, StatelessHook, network_of

KERNELS = ("hidden/kernel", "logits/kernel")


def small_network(optimizer, *, regularizer=0.0, units=5):
    penalty = keras.regularizers.L2(regularizer) if regularizer else None
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.Dense(units, activation="tanh", kernel_regularizer=penalty, name="hidden")(inputs)
    outputs = keras.layers.Dense(CLASSES, kernel_regularizer=penalty, name="logits")(hidden)
    return network_of(keras.Model(inputs, outputs), optimizer)


def build_hooks(hooks, network):
    return list(built(network, *hooks, total_steps=1000).hooks)


def masked_loop(hooks, network, *, xla=False):
    return hooked(network, *hooks, total_steps=1000, xla=xla)


class Maker(StatelessHook):
    """Make masks at given steps, and give newly masked entries a value."""

    def __init__(self, schedule, value=0.0):
        super().__init__("maker")
        self.schedule, self.value = schedule, value
        names = {name for masks in schedule.values() for name in masks}
        shapes = {name: masks[name].shape for masks in schedule.values() for name in masks}
        self.variables = {name: tf.Variable(np.ones(shapes[name], bool)) for name in sorted(names)}

    def declare(self):
        state = {f"mask/{name}": variable for name, variable in self.variables.items()}
        return Declaration(state, writes=state)

    def update_ops(self, context):
        ops = []
        self.before = {name: tf.convert_to_tensor(variable) for name, variable in self.variables.items()}
        for name, variable in self.variables.items():
            mask = self.before[name]
            for step, masks in self.schedule.items():
                mask = tf.where(context.step == step, tf.constant(masks[name]), mask)
            ops.append(variable.assign(mask))
        return ops

    def project(self, context):
        for name, variable in self.variables.items():
            new = tf.logical_and(self.before[name], tf.logical_not(tf.convert_to_tensor(variable)))
            latent = context.network.variables[name].value
            latent.assign(tf.where(new, tf.constant(self.value), latent))


def bits(array):
    """Return an array's bits, in which -0.0 is not 0.0 and NaN is NaN."""
    array = np.ascontiguousarray(array)
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def kernels_of(network):
    return {name: np.array(network.variables[name].value) for name in KERNELS}
