"""Which variables masks cover, and the layers that they belong to."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from hooks.quantization.kernel_layers import holds_kernel, own_kernels
from trainer.network import Network
from trainer.select import layer_paths, select_layers


@dataclass(frozen=True)
class Target:
    """Hold one latent variable that a mask covers.

    Attributes:
        name: of the variable in the network.
        layer: path of its layer.
        variable: the latent variable.
    """

    name: str
    layer: str
    variable: keras.Variable

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return math.prod(self.variable.shape)


def variable_layers(network: Network) -> dict[str, str]:
    """Return the path of the innermost layer of each trainable variable, by variable name.

    Args:
        network: with a built model.
    """
    names = {id(variable): name for name, variable in network.trainable_variables.items()}
    owners: dict[str, str] = {}
    for path, layer in layer_paths(network.model).items():  # containers come before what they contain
        owners |= {names[id(variable)]: path for variable in layer.weights if id(variable) in names}
    return {name: owners[name] for name in network.trainable_variables if name in owners}


def kernel_names(network: Network) -> list[str]:
    """Return the names of the trainable kernels, of whatever layer.

    Biases and batch norm are none; nor are kernels of layers that do not train, which are frozen as they are.

    Args:
        network: with a built model.
    """
    layers, trainable = layer_paths(network.model), network.trainable_variables
    return [
        name
        for name, path in variable_layers(network).items()
        if holds_kernel(layers[path]) and any(trainable[name] is each for each in own_kernels(layers[path]))
    ]


def select_targets(
    network: Network, patterns: str | Sequence[str], offered: Collection[str], *, kind: str
) -> list[Target]:
    """Return those of the offered variables whose layers match, in the network's order.

    Args:
        network: with a built model.
        patterns: on paths or names of layers that hold an offered variable.
        offered: names of trainable variables.
        kind: what such layers are called in an error, such as "kernel layer".

    Raises:
        UserError: a pattern matches nothing; the message lists the paths.
    """
    owners = {name: path for name, path in variable_layers(network).items() if name in offered}
    paths = layer_paths(network.model)
    holders = {id(paths[path]) for path in owners.values()}
    chosen = select_layers(network.model, patterns, accept=lambda layer: id(layer) in holders, kind=kind)
    trainable = network.trainable_variables
    return [Target(name, path, trainable[name]) for name, path in owners.items() if path in chosen]


def layer_rows(targets: Sequence[Target], masks: Mapping[str, tf.Variable]) -> list[dict[str, Any]]:
    """Return how much of each layer is frozen: rows of "layer", "entries", "frozen" and "share".

    Args:
        targets: what masks cover.
        masks: bool by variable name, True where entries train.
    """
    counts: dict[str, list[int]] = {}
    for target in targets:
        mask = masks[target.name].numpy()
        entries, frozen = counts.get(target.layer, (0, 0))
        counts[target.layer] = [entries + mask.size, frozen + mask.size - int(mask.sum())]
    return [
        {"layer": layer, "entries": entries, "frozen": frozen, "share": frozen / entries}
        for layer, (entries, frozen) in counts.items()
    ]
