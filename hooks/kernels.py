"""Kernels of a network: which layers have them, and which a hook selects or leaves out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.options import first_of
from hookline.trainer.errors import UserError
from hookline.trainer.graph import is_of, layer_paths, select_layers
from hookline.trainer.network import Network
from hookline.trainer.step.context import StepContext

MARK = "_added_by_hook"


def mark_added(layer: keras.layers.Layer, hook: str) -> None:
    """Mark a layer and all layers inside it as added by a hook, so that hooks for kernels do not select them."""
    for each in layer._flatten_layers():
        setattr(each, MARK, hook)


DEPTHWISE = ("DepthwiseConv1D", "DepthwiseConv2D")
SEPARABLE = ("SeparableConv1D", "SeparableConv2D")
TRANSPOSED = ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D")
KERNEL_LAYERS = ("Dense", *CONVOLUTIONS, *DEPTHWISE, *SEPARABLE, *TRANSPOSED)
TABLE = "embeddings"
KERNEL_NAMES = {"kernel", "depthwise_kernel", "pointwise_kernel", "recurrent_kernel", TABLE}
OWN_KERNELS = "In custom layers, weights named 'kernel' are included."


@dataclass(frozen=True)
class Target:
    """Hold one latent variable."""

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

    channel_axes: tuple[int, ...]  # axes of the output channels


def is_kernel_layer(layer: keras.Layer) -> bool:
    """Return whether a layer is a dense layer or a convolution of any kind that no hook added."""
    return is_of(layer, KERNEL_LAYERS) and not hasattr(layer, MARK)


def holds_kernel(layer: keras.Layer) -> bool:
    """Return whether a layer has a kernel of its own: a weight with two or more axes that is named like one."""
    return bool(own_kernels(layer)) and not hasattr(layer, MARK)


def own_kernels(layer: keras.Layer) -> list[keras.Variable]:
    """Return the kernels of a layer itself, without those of layers inside it."""
    return [variable for variable in own_weights(layer) if variable.name in KERNEL_NAMES and len(variable.shape) > 1]


def own_weights(layer: keras.Layer) -> list[keras.Variable]:
    """Return the weights and moving statistics of a layer itself, without those of layers inside it."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def select_kernels(network: Network, patterns: str | Sequence[str], *, doing: str) -> list[Kernel]:
    """Return the kernels of the matching layers, of any type."""
    layers = select_layers(network.model, patterns, accept=holds_kernel, kind="kernel layer")
    return find_kernels(network, layers, doing=doing)


def find_kernels(network: Network, layers: dict[str, keras.Layer], *, doing: str = "quantized") -> list[Kernel]:
    """Return the kernels of layers; separable convolutions and recurrent cells have several."""
    names = {id(variable): name for name, variable in network.trainable_variables.items()}
    kernels, seen = [], set[int]()
    for path, layer in layers.items():
        for variable in own_kernels(layer):
            if id(variable) in seen:  # tied weights: another layer has it too
                continue
            seen.add(id(variable))
            if id(variable) not in names:
                raise UserError(
                    f"The kernel of layer '{path}' is not trainable, so it cannot be {doing}. Leave it out of "
                    "`layers`, or make it trainable and freeze it with the hook freeze_layers."
                )
            kernels.append(Kernel(names[id(variable)], path, variable, channel_axes(layer, variable)))
    return kernels


def channel_axes(layer: keras.Layer, variable: keras.Variable) -> tuple[int, ...]:
    """Return the axes of a kernel that index its output channels."""
    if is_depthwise(layer, variable):
        return (-2, -1)
    if is_of(layer, ("EinsumDense",)):
        operands, outputs = layer.equation.split("->")
        letters = operands.split(",")[1].replace(".", "")
        return tuple(axis - len(letters) for axis, letter in enumerate(letters) if letter in outputs)
    return (-2,) if is_of(layer, TRANSPOSED) else (-1,)


def is_depthwise(layer: keras.Layer, variable: keras.Variable) -> bool:
    """Return whether a kernel is that of a depthwise convolution, which does not sum over input channels."""
    return is_of(layer, DEPTHWISE) or variable.name == "depthwise_kernel"


def variable_layers(network: Network) -> dict[str, str]:
    """Return the path of the innermost layer of each trainable variable, by variable name."""
    names = {id(variable): name for name, variable in network.trainable_variables.items()}
    owners: dict[str, str] = {}
    for path, layer in layer_paths(network.model).items():  # containers come before what they contain
        owners |= {names[id(variable)]: path for variable in layer.weights if id(variable) in names}
    return {name: owners[name] for name in network.trainable_variables if name in owners}


def kernel_names(network: Network) -> list[str]:
    """Return the names of the trainable kernels of all layers."""
    layers = [layer for layer in layer_paths(network.model).values() if not hasattr(layer, MARK)]
    kernels = {id(kernel) for layer in layers for kernel in own_kernels(layer)}
    return [name for name, variable in network.trainable_variables.items() if id(variable) in kernels]


def select_targets(
    network: Network, patterns: str | Sequence[str], offered: Collection[str], *, kind: str
) -> list[Target]:
    """Return the offered variables of the matching layers, in the network's order."""
    owners = {name: path for name, path in variable_layers(network).items() if name in offered}
    paths = layer_paths(network.model)
    holders = {id(paths[path]) for path in owners.values()}
    chosen = select_layers(network.model, patterns, accept=lambda layer: id(layer) in holders, kind=kind)
    trainable = network.trainable_variables
    return [Target(name, path, trainable[name]) for name, path in owners.items() if path in chosen]


def layer_rows(targets: Sequence[Target], masks: Mapping[str, tf.Variable]) -> list[dict[str, Any]]:
    """Return how much of each layer is frozen: rows of "layer", "entries", "frozen" and "share"."""
    rows: dict[str, dict[str, Any]] = {}
    for target in targets:
        mask = masks[target.name].numpy()
        row = rows.setdefault(target.layer, {"layer": target.layer, "entries": 0, "frozen": 0})
        row["entries"] += mask.size
        row["frozen"] += mask.size - int(mask.sum())
        row["share"] = row["frozen"] / row["entries"]
    return list(rows.values())


def entry_shares(name: str, kernels: Sequence[Kernel], flags: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return the share of entries that are flagged: over all under `name`, per layer under "<name>/<layer>"."""
    groups: dict[str, list[tuple[tf.Tensor, int]]] = {}
    for kernel, flag in zip(kernels, flags, strict=True):
        count = tf.reduce_sum(tf.cast(flag, tf.float32))  # a GPU has no sum of integers
        for key in (name, f"{name}/{kernel.layer}"):
            groups.setdefault(key, []).append((count, kernel.size))
    return {key: tf.add_n([count for count, _ in each]) / sum(size for _, size in each) for key, each in groups.items()}


def relative_distance(context: StepContext, names: Iterable[str]) -> tf.Tensor:
    """Return the RMS change of latent weights in the forward pass, divided by the RMS of the latent weights."""
    latent = {name: tf.cast(context.latent[name], tf.float32) for name in names}
    away = [tf.cast(context.weights[name], tf.float32) - own for name, own in latent.items()]
    return tf.math.divide_no_nan(tf.linalg.global_norm(away), tf.linalg.global_norm(list(latent.values())))


def left_out_weights(network: Network, covered: Collection[str]) -> list[Target]:
    """Return the trainable weights with two or more axes that are not covered, except biases."""
    layers, owners = {"": network.model, **layer_paths(network.model)}, variable_layers(network)
    return [
        Target(name, owners.get(name, ""), each)
        for name, each in network.trainable_variables.items()
        if name not in covered
        and len(each.shape) > 1
        and "bias" not in each.name
        and not hasattr(layers[owners.get(name, "")], MARK)
    ]


def left_out_advice(
    network: Network, patterns: str | Sequence[str], covered: Collection[str], *, state: str, reason: str = OWN_KERNELS
) -> list[str]:
    """Return a warning with the share of entries that "*" leaves out, if any."""
    missed = left_out_weights(network, covered)
    if "*" not in ([patterns] if isinstance(patterns, str) else patterns) or not missed:
        return []
    layers = {"": network.model, **layer_paths(network.model)}
    named = first_of([f"{each.name} ({type(layers[each.layer]).__name__})" for each in missed])
    entries = sum(each.size for each in missed)
    total = entries + sum(math.prod(network.trainable_variables[name].shape) for name in covered)
    return [f"layers='*' leaves {entries:,} of {total:,} kernel entries {state}: {named}. {reason}"]
