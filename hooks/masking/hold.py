"""Hold entries, and show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import Target
from hookline.hooks.options import AVERAGE
from hookline.trainer.network import Network
from hookline.trainer.ops.estimators import zero_unless

LARGEST = 512  # pixels a side


def mask_pictures(masks: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Return one picture a mask, named "mask/<variable>": white where entries are kept, black where they are masked."""
    return {f"mask/{name}": mask_picture(mask.numpy()) for name, mask in masks.items()}


def mask_picture(mask: np.ndarray) -> np.ndarray:
    """Return a mask as a grey picture: a pixel an entry, or where that is too large, the kept share of its entries."""
    rows = mask.reshape(-1, mask.shape[-1]).astype(np.float32)
    for axis in (0, 1):
        rows = _shrink(rows, axis)
    return rows[..., np.newaxis]


def _shrink(values: np.ndarray, axis: int) -> np.ndarray:
    """Return means of neighbours along an axis, grouped so that it becomes short enough."""
    count = math.ceil(values.shape[axis] / LARGEST)
    starts = np.arange(0, values.shape[axis], count)
    sums = np.add.reduceat(values, starts, axis=axis)
    sizes = np.diff([*starts, values.shape[axis]]).astype(np.float32)
    return sums / np.expand_dims(sizes, axis=1 - axis)


Masks: TypeAlias = "Mapping[str, tf.Tensor]"


def hold_values(targets: Sequence[Target], masks: Masks, latent: Mapping[str, tf.Tensor]) -> None:
    """Restore frozen entries to the bits that they had at the start of the step."""
    for target in targets:
        value = target.variable.value
        value.assign(tf.where(masks[target.name], value, latent[target.name]))


def hold_averages(network: Network, targets: Sequence[Target], masks: Masks) -> None:
    """Let the optimizer's moving average of a frozen entry be its value.

    This is due after every step: the average m a + (1 - m) w is rounded, and w was not yet put back when it was taken.
    """
    for target in targets:
        average = network.optimizer_slots(target.name).get(AVERAGE)
        if average is not None:
            average.value.assign(tf.where(masks[target.name], average.value, target.variable.value))


def clear_slots(network: Network, targets: Sequence[Target], masks: Masks, *, when: tf.Tensor) -> None:
    """Set the optimizer's slots (momenta, second moments, accumulated gradients) to 0 where the mask is False.

    A slot of 0 whose gradient is 0 stays 0, so this is due only when masks change.
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
