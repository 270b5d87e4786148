"""Batch norms that are folded into kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hookline.hooks.kernels import Kernel
from hookline.trainer.graph import fold_shape, folded_norms
from hookline.trainer.network import Network


@dataclass(frozen=True)
class Norm:
    """Name what a batch norm multiplies the channels of a layer by."""

    gamma: str | None  # names of variables
    variance: str
    epsilon: float
    shape: tuple[int, ...]  # in which the factors multiply the kernel

    def factors(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> tf.Tensor:
        """Return gamma / sqrt(variance + epsilon), of the moving statistics."""
        scale = tf.math.rsqrt(tf.cast(state[self.variance], tf.float32) + self.epsilon)
        return tf.reshape(scale if self.gamma is None else scale * weights[self.gamma], self.shape)


def folded_by_kernel(network: Network, kernels: Sequence[Kernel]) -> dict[str, Norm]:
    """Return the batch norms that are folded into kernels, by the kernel's name."""
    names = {id(variable): name for name, variable in network.variables.items()}
    norms = {id(layer.kernel): (layer, norm) for layer, norm in folded_norms(network.model)}
    found = {}
    for kernel in (each for each in kernels if id(each.variable) in norms):
        layer, norm = norms[id(kernel.variable)]
        gamma = names[id(norm.gamma)] if norm.scale else None
        shape = fold_shape(layer, kernel.variable)
        found[kernel.name] = Norm(gamma, names[id(norm.moving_variance)], norm.epsilon, shape)
    return found
