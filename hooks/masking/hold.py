"""How frozen entries are held after the optimizer: their values, their moving averages, their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from hooks.masking.targets import Target
from hooks.optimizer import AVERAGE
from trainer.network import Network
from trainer.ops.zero_unless import zero_unless

Masks: TypeAlias = "Mapping[str, tf.Tensor]"


def hold_values(targets: Sequence[Target], masks: Masks, latent: Mapping[str, tf.Tensor]) -> None:
    """Give frozen entries back the bits that they had at the start of the step.

    Args:
        targets: what masks cover.
        masks: bool by variable name, True where entries train, as they stood at the start of the step.
        latent: the variables as read at the start of the step, by name.
    """
    for target in targets:
        value = target.variable.value
        value.assign(tf.where(masks[target.name], value, latent[target.name]))


def hold_averages(network: Network, targets: Sequence[Target], masks: Masks) -> None:
    """Let the optimizer's moving average of a frozen entry be its value.

    This is due after every step: the average m a + (1 - m) w is rounded, and w was not yet put back when it was taken.

    Args:
        network: that the targets belong to.
        targets: what masks cover.
        masks: bool by variable name, True where entries train, as they stand after the step.
    """
    for target in targets:
        average = network.optimizer_slots(target.name).get(AVERAGE)
        if average is not None:
            average.value.assign(tf.where(masks[target.name], average.value, target.variable.value))


def clear_slots(network: Network, targets: Sequence[Target], masks: Masks, *, when: tf.Tensor) -> None:
    """Set the optimizer's slots (momenta, second moments, accumulated gradients) to 0 where the mask is False.

    A slot of 0 whose gradient is 0 stays 0, so this is due only when masks change.

    Args:
        network: that the targets belong to.
        targets: what masks cover.
        masks: bool by variable name, True where slots are kept.
        when: bool scalar, whether it is due in this step.
    """
    slots = [
        (slot.value, masks[target.name])
        for target in targets
        for attribute, slot in network.optimizer_slots(target.name).items()
        if attribute != AVERAGE
    ]

    def clear() -> tf.Tensor:
        for slot, mask in slots:
            slot.assign(zero_unless(mask, slot))
        return tf.constant(True)

    if slots:
        tf.cond(when, clear, lambda: tf.constant(False))
