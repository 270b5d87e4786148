"""Kernels of a network: which layers have them, which a hook chose, which it left out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.options import first_of
from hookline.trainer.errors import UserError
from hookline.trainer.graph import is_of
from hookline.trainer.network import Network
from hookline.trainer.select import layer_paths, select_layers

MARK = "_added_by_hook"


def mark_added(layer: keras.layers.Layer, hook: str) -> None:
    """Mark a layer and all layers inside it as a hook's own.

    Hooks that choose among kernel layers (`is_kernel_layer`) leave marked ones alone: a pattern such as "*" means the
    layers of the network that the user gave. The mark is of this process; it is not saved with a model.
    """
    for each in layer._flatten_layers():
        setattr(each, MARK, hook)


def is_added(layer: keras.layers.Layer) -> bool:
    """Return whether a hook put this layer into the network."""
    return hasattr(layer, MARK)


DEPTHWISE = ("DepthwiseConv1D", "DepthwiseConv2D")
SEPARABLE = ("SeparableConv1D", "SeparableConv2D")
TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D")
KERNEL_LAYERS = ("Dense", *CONVOLUTIONS, *DEPTHWISE, *SEPARABLE, *TRANSPOSED)
TABLE = "embeddings"
KERNEL_NAMES = {"kernel", "depthwise_kernel", "pointwise_kernel", "recurrent_kernel", TABLE}


@dataclass(frozen=True)
class Target:
    """Hold one latent variable, such as one that a mask covers."""

    name: str  # of the variable in the network
    layer: str  # path of its layer
    variable: keras.Variable

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return math.prod(self.variable.shape)

    def new_mask(self) -> tf.Variable:
        """Return a state variable for a mask, True everywhere."""
        return tf.Variable(tf.ones(self.variable.shape, tf.bool), trainable=False, name="mask")


@dataclass(frozen=True)
class Kernel(Target):
    """Hold one latent kernel."""

    channel_axes: tuple[int, ...]  # axes that tell output channels apart


def is_kernel_layer(layer: keras.Layer) -> bool:
    """Return whether a layer is a dense layer or a convolution of any kind: those whose weights and inputs are rounded.

    Layers that another hook put into the network, such as the branch of Bernoulli attention, do not count.
    """
    return is_of(layer, KERNEL_LAYERS) and not is_added(layer)


def holds_kernel(layer: keras.Layer) -> bool:
    """Return whether a layer holds a kernel itself: those of `is_kernel_layer`, recurrent cells, embeddings, einsums.

    A layer of the user's own does, if it names a weight of at least two axes as Keras does, such as "kernel".
    """
    return bool(own_kernels(layer)) and not is_added(layer)


def own_kernels(layer: keras.Layer) -> list[keras.Variable]:
    """Return the kernels that a layer holds itself, not within layers inside it."""
    own = [*layer._trainable_variables, *layer._non_trainable_variables]
    return [variable for variable in own if variable.name in KERNEL_NAMES and len(variable.shape) > 1]


def find_kernels(network: Network, layers: dict[str, keras.Layer], *, doing: str = "quantized") -> list[Kernel]:
    """Return the kernels of layers, those of separable convolutions and of recurrent cells apart."""
    names = {id(variable): name for name, variable in network.trainable_variables.items()}
    kernels = []
    for path, layer in layers.items():
        for variable in own_kernels(layer):
            if id(variable) not in names:
                raise UserError(
                    f"The kernel of layer '{path}' is not trainable, so it cannot be {doing}. "
                    "Set trainable=True on the layer, or leave it out of the `layers` pattern."
                )
            kernels.append(Kernel(names[id(variable)], path, variable, channel_axes(layer, variable)))
    return kernels


def channel_axes(layer: keras.Layer, variable: keras.Variable) -> tuple[int, ...]:
    """Return the axes of a kernel that tell its output channels apart."""
    if is_depthwise(layer, variable):
        return (-2, -1)
    if is_of(layer, ("EinsumDense",)):
        operands, outputs = layer.equation.split("->")
        letters = operands.split(",")[1].replace(".", "")
        return tuple(axis - len(letters) for axis, letter in enumerate(letters) if letter in outputs)
    return (-2,) if is_of(layer, TRANSPOSED) else (-1,)


def is_depthwise(layer: keras.Layer, variable: keras.Variable) -> bool:
    """Return whether a kernel is that of a depthwise convolution, which adds over no input channels."""
    return is_of(layer, DEPTHWISE) or variable.name == "depthwise_kernel"


def variable_layers(network: Network) -> dict[str, str]:
    """Return the path of the innermost layer of each trainable variable, by variable name."""
    names = {id(variable): name for name, variable in network.trainable_variables.items()}
    owners: dict[str, str] = {}
    for path, layer in layer_paths(network.model).items():  # containers come before what they contain
        owners |= {names[id(variable)]: path for variable in layer.weights if id(variable) in names}
    return {name: owners[name] for name in network.trainable_variables if name in owners}


def kernel_names(network: Network) -> list[str]:
    """Return the names of the trainable kernels of all layers.

    Biases and batch norm do not count; nor do kernels of layers that do not train, which are frozen as they are.
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
    """Return those of the offered variables whose layers match, in the network's order."""
    owners = {name: path for name, path in variable_layers(network).items() if name in offered}
    paths = layer_paths(network.model)
    holders = {id(paths[path]) for path in owners.values()}
    chosen = select_layers(network.model, patterns, accept=lambda layer: id(layer) in holders, kind=kind)
    trainable = network.trainable_variables
    return [Target(name, path, trainable[name]) for name, path in owners.items() if path in chosen]


def layer_rows(targets: Sequence[Target], masks: Mapping[str, tf.Variable]) -> list[dict[str, Any]]:
    """Return how much of each layer is frozen: rows of "layer", "entries", "frozen" and "share"."""
    counts: dict[str, list[int]] = {}
    for target in targets:
        mask = masks[target.name].numpy()
        entries, frozen = counts.get(target.layer, (0, 0))
        counts[target.layer] = [entries + mask.size, frozen + mask.size - int(mask.sum())]
    return [
        {"layer": layer, "entries": entries, "frozen": frozen, "share": frozen / entries}
        for layer, (entries, frozen) in counts.items()
    ]


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


def left_out_weights(network: Network, covered: Collection[str]) -> list[Target]:
    """Return the trainable weights of two axes or more that are not covered. Biases are not among them."""
    layers, owners = {"": network.model, **layer_paths(network.model)}, variable_layers(network)
    targets = [Target(name, owners.get(name, ""), each) for name, each in network.trainable_variables.items()]
    return [
        each
        for each in targets
        if each.name not in covered
        and len(each.variable.shape) > 1
        and "bias" not in each.variable.name
        and not is_added(layers[each.layer])
    ]


def left_out_advice(
    network: Network, patterns: str | Sequence[str], covered: Collection[str], *, state: str, reason: str
) -> list[str]:
    """Return one line with the share of entries that "*" leaves out, if any."""
    missed = left_out_weights(network, covered)
    if "*" not in ([patterns] if isinstance(patterns, str) else patterns) or not missed:
        return []
    layers = {"": network.model, **layer_paths(network.model)}
    named = first_of([f"{each.name} ({type(layers[each.layer]).__name__})" for each in missed])
    entries = sum(each.size for each in missed)
    total = entries + sum(math.prod(network.trainable_variables[name].shape) for name in covered)
    return [f"layers='*' leaves {entries:,} of {total:,} kernel entries {state}: {named}. {reason}"]
