"""What a run ships: the weights that its evaluation uses, and the bits that they are stored with."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainer.step.trainer import Trainer

FLOAT_BITS = 32.0


def shipped_weights(trainer: Trainer, step: int) -> dict[str, dict[str, np.ndarray]]:
    """Return what evaluation uses in place of each weight and moving statistic: after every hook.

    Args:
        trainer: with its hooks built; the variables are read as they are.
        step: steps made.

    Returns:
        By network name, then by variable name.
    """

    def read() -> dict[str, dict[str, tf.Tensor]]:
        passes = trainer.forward(tf.constant(step, tf.int64), {}, objective="", training=False).passes
        values = {name: {**each.context.weights, **each.state} for name, each in passes.items()}
        return {name: {key: values[name][key] for key in trainer.networks[name].weights} for name in passes}

    traced = tf.function(read, autograph=False).get_concrete_function()
    return {name: {key: value.numpy() for key, value in found.items()} for name, found in traced().items()}


def stored_bits(trainer: Trainer, step: int) -> dict[str, dict[str, float]]:
    """Return bits per entry in the shipped network, by network and variable, where they are not those of a float32.

    Every hook says how many bits its own form takes for the weights that are really shipped: those that all hooks
    together leave. So each form can hold them, and of several the smallest counts. Kernels that are pruned and then
    rounded to a sign hold no zero; the sparse form has no gain there, and the sign's bit counts.

    Args:
        trainer: with its hooks built.
        step: steps made.
    """
    bits = {}
    for name, shipped in shipped_weights(trainer, step).items():
        forms = [hook.stored_bits(shipped) for hook in trainer.hooks if hook.network == name]
        variables = {variable for form in forms for variable in form}
        bits[name] = {
            variable: min(FLOAT_BITS, *(form[variable] for form in forms if variable in form)) for variable in variables
        }
    return bits
