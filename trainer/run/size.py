"""The size of a network: parameters, and bytes as float32 and as it would be shipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import keras

from trainer.network import Network


@dataclass(frozen=True)
class Size:
    """Hold counts of one or more networks.

    Attributes:
        total: weights, moving statistics included, seed state excluded.
        trainable: latent (trainable) weights of networks that are not fixed.
        float32_bytes: every weight as float32, batch norm folded.
        deployed_bytes: every weight at the bits that the hooks store it with, batch norm folded.
    """

    total: int
    trainable: int
    float32_bytes: int
    deployed_bytes: int


def measure_size(networks: Iterable[Network], stored_bits: Mapping[str, Mapping[str, float]]) -> Size:
    """Return the size of networks.

    At inference a batch norm is one scale and one offset a channel, so it counts as two floats a channel, whatever
    it trains with (the count that Larq's summary makes too).

    Args:
        networks: to count.
        stored_bits: by network name: bits an entry by variable name, for variables not shipped as float32.
    """
    total = trainable = floats = 0
    deployed_bits = 0.0
    for network in networks:
        bits = stored_bits.get(network.name, {})
        names = {id(variable): name for name, variable in network.variables.items()}
        batch_norms = _batch_norms(network.model)
        folded = {id(variable) for layer in batch_norms for variable in layer.weights}
        total += sum(math.prod(v.shape) for v in network.model.weights)
        trainable += 0 if network.fixed else sum(math.prod(v.shape) for v in network.model.trainable_weights)
        for variable in network.model.weights:
            if id(variable) not in folded:
                count = math.prod(variable.shape)
                floats += count
                deployed_bits += count * bits.get(names[id(variable)], 32.0)
        channels = sum(math.prod(layer.moving_mean.shape) for layer in batch_norms)
        floats += 2 * channels
        deployed_bits += 64.0 * channels
    return Size(total, trainable, 4 * floats, math.ceil(deployed_bits / 8))


def _batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
