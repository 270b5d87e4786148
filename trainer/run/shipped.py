"""What a run ships: the weights that its evaluation uses, and the bits that they are stored with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from trainer.run.hook_answers import answer
from trainer.run.network_summary import FLOAT, Forms
from trainer.run.size import FLOAT_BITS
from trainer.step.trainer import Trainer

Bits = TypeVar("Bits", int, float)


class ShippedWeights:
    """Read what evaluation uses in place of each weight and moving statistic: after every hook.

    Nothing is traced before the first call, and only then.
    """

    def __init__(self, trainer: Trainer) -> None:
        """Take what is read.

        Args:
            trainer: with its hooks built.
        """
        self._trainer = trainer
        self._read = tf.function(self._used, autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])

    def __call__(self, step: int) -> dict[str, dict[str, np.ndarray]]:
        """Return the values of now, by network name, then by variable name.

        Args:
            step: steps made.
        """
        read = self._read(tf.constant(step, tf.int64))
        return {name: {key: value.numpy() for key, value in found.items()} for name, found in read.items()}

    def _used(self, step: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
        passes = self._trainer.forward(step, {}, objective="", training=False).passes
        values = {name: {**each.context.weights, **each.state} for name, each in passes.items()}
        return {name: {key: values[name][key] for key in self._trainer.networks[name].weights} for name in passes}


def shipped_weights(trainer: Trainer, step: int) -> dict[str, dict[str, np.ndarray]]:
    """Return what evaluation uses in place of each weight and moving statistic: after every hook.

    Args:
        trainer: with its hooks built; the variables are read as they are.
        step: steps made.

    Returns:
        By network name, then by variable name.
    """
    return ShippedWeights(trainer)(step)


def shipped_forms(trainer: Trainer, step: int, weights: ShippedWeights | None = None) -> dict[str, Forms]:
    """Return in what form the weights and inputs of every network are shipped.

    Every hook says how many bits its own form takes for the weights that are really shipped: those that all hooks
    together leave. So each form can hold them, and of several the smallest counts. Kernels that are pruned and then
    rounded to a sign hold no zero; the sparse form has no gain there, and the sign's bit counts.

    Args:
        trainer: with its hooks built.
        step: steps made.
        weights: of the trainer, where something has read them before; None to trace the reading here.
    """
    forms = {}
    for name, shipped in (weights or ShippedWeights(trainer))(step).items():
        hooks = [hook for hook in trainer.hooks if hook.network == name]
        forms[name] = Forms(
            shipped,
            stored_bits=_fewest([answer(each, "stored_bits", shipped, given=shipped) for each in hooks], FLOAT_BITS),
            weight_bits=_fewest([answer(each, "weight_bits", shipped, given=shipped) for each in hooks], FLOAT),
            input_bits=_fewest([answer(each, "input_bits") for each in hooks], FLOAT),
        )
    return forms


def stored_bits(trainer: Trainer, step: int) -> dict[str, dict[str, float]]:
    """Return bits per entry in the shipped network, by network and variable, where they are not those of a float32.

    Args:
        trainer: with its hooks built.
        step: steps made.
    """
    return {name: dict(forms.stored_bits) for name, forms in shipped_forms(trainer, step).items()}


def _fewest(given: Sequence[Mapping[str, Bits]], most: Bits) -> dict[str, Bits]:
    """Return the smallest number for each name, and at most that of a float32."""
    names = {name: None for each in given for name in each}
    return {name: min(most, *(each[name] for each in given if name in each)) for name in names}
