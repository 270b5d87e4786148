"""Shares of incremental quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hookline.hooks.kernels import Kernel
from hookline.hooks.options import epoch_start
from hookline.trainer.errors import UserError


def entry_shares(name: str, kernels: Sequence[Kernel], flags: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return the share of entries that are flagged: over all under `name`, per layer under "<name>/<layer>"."""
    # As float32, which a GPU can sum, too; counts are exact up to 2^24, and beyond as precise as the shares.
    counts = [tf.reduce_sum(tf.cast(flag, tf.float32)) for flag in flags]
    groups = {name: list(zip(kernels, counts, strict=True))} if kernels else {}
    for kernel, count in zip(kernels, counts, strict=True):
        groups.setdefault(f"{name}/{kernel.layer}", []).append((kernel, count))
    return {
        key: tf.add_n([count for _, count in group]) / sum(kernel.size for kernel, _ in group)
        for key, group in groups.items()
    }


def check_shares(name: str, value: Any) -> list[float]:
    """Return rising shares that end with 1, or raise a UserError."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if is_list and all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
        shares = [float(each) for each in value]
        rising = all(lower < higher for lower, higher in zip([0.0, *shares[:-1]], shares, strict=True))
        if rising and shares[-1] == 1.0:
            return shares
    raise UserError(
        f"Invalid {name}: {value!r}. Expected rising shares above 0 that end with 1, such as [0.5, 0.75, 1]."
    )


def change_steps(
    count: int, *, begin_epoch: float, step_epochs: float | None, total_steps: int, steps_per_epoch: float
) -> list[int]:
    """Return the optimizer steps in which the shares grow. One at the very end of the run falls on its last step."""
    total_epochs = total_steps / steps_per_epoch
    apart = (total_epochs - begin_epoch) / count if step_epochs is None else step_epochs
    epochs = [begin_epoch + index * apart for index in range(count)]
    steps = [epoch_start(epoch, steps_per_epoch) for epoch in epochs]
    if max(begin_epoch, epochs[-1]) > total_epochs + 1e-6:
        raise UserError(
            f"The last of {count} shares would be quantized at epoch {max(begin_epoch, epochs[-1]):g}, after the end "
            f"of the run, epoch {total_epochs:g}. Expected a smaller begin_epoch or step_epochs, fewer shares, or a "
            "longer run with trainer.epochs."
        )
    if len(set(steps)) < count:
        raise UserError(
            f"Two of {count} shares would be quantized in one step: {apart * steps_per_epoch:.3g} steps apart. "
            "Expected a larger step_epochs, fewer shares, or a longer run with trainer.epochs."
        )
    return [min(step, total_steps - 1) for step in steps]
