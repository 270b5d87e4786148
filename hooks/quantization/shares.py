"""Shares of kernel entries, per layer and over all."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from hooks.quantization.kernel_layers import Kernel


def entry_shares(name: str, kernels: Sequence[Kernel], flags: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return the share of entries that are flagged: over all under `name`, per layer under "<name>/<layer>".

    Args:
        name: such as "bnn/flip_ratio".
        kernels: a layer may have several.
        flags: bool, of the kernels' shapes.

    Returns:
        float32 scalars in [0, 1]; none when there are no kernels.
    """
    # As float32, which a GPU adds up, too; counts are exact up to 2^24, and as good as the shares are beyond.
    counts = [tf.reduce_sum(tf.cast(flag, tf.float32)) for flag in flags]
    groups = {name: list(zip(kernels, counts, strict=True))} if kernels else {}
    for kernel, count in zip(kernels, counts, strict=True):
        groups.setdefault(f"{name}/{kernel.layer}", []).append((kernel, count))
    return {
        key: tf.add_n([count for _, count in group]) / sum(kernel.size for kernel, _ in group)
        for key, group in groups.items()
    }
