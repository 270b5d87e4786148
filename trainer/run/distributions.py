"""Arrays whose distribution tells how training goes: the weights, as they are and as they are used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer.hook import Arrays
from trainer.network import Network

LATENT, FORWARD = "latent", "forward"
BIAS = "/bias"  # of layers side by side, it has two dimensions


def weight_distributions(networks: Mapping[str, Network], used: Mapping[str, Mapping[str, np.ndarray]]) -> Arrays:
    """Return the latent weights of every kernel, and what the forward pass uses in their place where it differs.

    Args:
        networks: by name.
        used: what evaluation uses in place of each weight, by network name, then by variable name.

    Returns:
        Arrays by "weights/<variable>/latent" and "weights/<variable>/forward"; of several networks, with
        "<network>/" before. A kernel is a trainable variable of two or more dimensions that is no bias.
    """
    found: Arrays = {}
    for name, network in networks.items():
        scope = f"{name}/" if len(networks) > 1 else ""
        for path, variable in network.trainable_variables.items():
            if len(variable.shape) < 2 or path.endswith(BIAS):
                continue
            latent, forward = variable.value.numpy(), used[name][path]
            found[f"{scope}weights/{path}/{LATENT}"] = latent
            if not np.array_equal(latent, forward, equal_nan=True):
                found[f"{scope}weights/{path}/{FORWARD}"] = forward
    return found
