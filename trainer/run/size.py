"""The size of a network: parameters, and bytes as float32 and as it would be shipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import keras

from trainer.network import Network
from trainer.select import layer_paths

FLOAT_BITS = 32.0


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


@dataclass(frozen=True, eq=False)
class LayerSize:
    """Hold counts of what a layer owns itself, not within layers inside it.

    Attributes:
        path: of the layer; empty for the model itself, which may hold weights of its own.
        layer: the layer.
        weights: its weights and moving statistics, by name.
        trainable: how many latent weights are trained.
        floats: how many floats it takes as float32, batch norm folded.
        deployed_bits: bits that it takes as the hooks store it, batch norm folded.
    """

    path: str
    layer: keras.Layer
    weights: dict[str, keras.Variable]
    trainable: int
    floats: int
    deployed_bits: float

    @property
    def total(self) -> int:
        """Return the number of its weights, moving statistics included."""
        return sum(math.prod(each.shape) for each in self.weights.values())


def measure_size(networks: Iterable[Network], stored_bits: Mapping[str, Mapping[str, float]]) -> Size:
    """Return the size of networks.

    Args:
        networks: to count.
        stored_bits: by network name: bits an entry by variable name, for variables not shipped as float32.
    """
    return add_up(each for network in networks for each in layer_sizes(network, stored_bits.get(network.name, {})))


def add_up(layers: Iterable[LayerSize]) -> Size:
    """Return the size of layers together.

    Args:
        layers: of one or more networks.
    """
    each = list(layers)
    return Size(
        total=sum(layer.total for layer in each),
        trainable=sum(layer.trainable for layer in each),
        float32_bytes=4 * sum(layer.floats for layer in each),
        deployed_bytes=math.ceil(sum(layer.deployed_bits for layer in each) / 8),
    )


def layer_sizes(network: Network, bits: Mapping[str, float]) -> list[LayerSize]:
    """Return the size of every layer, each weight in the innermost layer that holds it, so that they add up.

    At inference a batch norm is one scale and one offset a channel, so it counts as two floats a channel, whatever
    it trains with (the count that Larq's summary makes too).

    Args:
        network: to count.
        bits: an entry by variable name, for variables not shipped as float32.
    """
    layers = {"": network.model, **layer_paths(network.model)}
    owners = {id(weight): path for path, layer in layers.items() for weight in layer.weights}
    owned: dict[str, dict[str, keras.Variable]] = {path: {} for path in layers}
    for name, weight in network.weights.items():
        owned[owners[id(weight)]][name] = weight
    trained = set() if network.fixed else {id(weight) for weight in network.model.trainable_weights}
    return [_layer_size(path, layer, owned[path], trained, bits) for path, layer in layers.items()]


def _layer_size(
    path: str,
    layer: keras.Layer,
    weights: dict[str, keras.Variable],
    trained: set[int],
    bits: Mapping[str, float],
) -> LayerSize:
    counts = {name: math.prod(weight.shape) for name, weight in weights.items()}
    trainable = sum(counts[name] for name, weight in weights.items() if id(weight) in trained)
    if isinstance(layer, keras.layers.BatchNormalization):
        floats = 2 * math.prod(layer.moving_mean.shape)
        return LayerSize(path, layer, weights, trainable, floats, FLOAT_BITS * floats)
    deployed = sum((count * bits.get(name, FLOAT_BITS) for name, count in counts.items()), start=0.0)
    return LayerSize(path, layer, weights, trainable, sum(counts.values()), deployed)
