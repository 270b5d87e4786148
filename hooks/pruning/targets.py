"""Which kernels are pruned, and how sparse each of them is to become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras

from hooks.pruning.criteria import matrix_shape
from hooks.pruning.options import Sparsity, Structure
from hooks.pruning.settings import Settings
from hooks.quantization.graph_facts import trace_kernel_inputs
from hooks.quantization.kernel_layers import TABLE, Kernel, find_kernels, holds_kernel, is_depthwise, is_kernel_layer
from trainer.errors import UserError
from trainer.graph import is_graph
from trainer.network import Network
from trainer.select import layer_paths, select_layers


def select_kernels(network: Network, patterns: str | Sequence[str]) -> list[Kernel]:
    """Return the kernels of the layers that match.

    Args:
        network: built.
        patterns: on paths or names of layers that hold kernels.

    Raises:
        UserError: a pattern matches nothing, or a kernel is not trainable.
    """
    layers = select_layers(network.model, patterns, accept=holds_kernel, kind="kernel layer")
    return find_kernels(network, layers, doing="pruned")


def layer_targets(network: Network, kernels: Sequence[Kernel], sparsity: Sparsity, option: str) -> dict[str, float]:
    """Return the sparsity of each pruned layer, by path.

    Args:
        network: that the kernels belong to.
        kernels: to prune.
        sparsity: one for all, or by pattern; where several patterns match a layer, the last one counts.
        option: the config key, for errors.

    Raises:
        UserError: a pattern matches no pruned layer, or a pruned layer matches no pattern.
    """
    paths = list(dict.fromkeys(kernel.layer for kernel in kernels))
    if not isinstance(sparsity, Mapping):
        return dict.fromkeys(paths, sparsity)
    pruned = {id(layer) for path, layer in layer_paths(network.model).items() if path in paths}
    targets: dict[str, float] = {}
    for pattern, value in sparsity.items():
        matched = select_layers(network.model, pattern, accept=lambda layer: id(layer) in pruned, kind="pruned layer")
        targets |= dict.fromkeys(matched, value)
    missing = [path for path in paths if path not in targets]
    if missing:
        raise UserError(
            f"{option} gives no sparsity for {', '.join(missing)}. Expected a pattern for every layer to prune: add "
            f"'{missing[0]}', or leave these layers out of `layers`."
        )
    return targets


def layer_sparsities(
    network: Network, kernels: Sequence[Kernel], settings: Settings, steps: Sequence[int]
) -> dict[str, list[float]]:
    """Return the sparsity of each pruned layer after each update, by path.

    Args:
        network: that the kernels belong to.
        kernels: to prune.
        settings: checked.
        steps: of the updates.

    Raises:
        UserError: as `layer_targets`, or a sparsity would fall.
    """
    if settings.stages:
        stages = [layer_targets(network, kernels, stage, "stages") for stage in settings.stages]
        sparsities = {path: [stage[path] for stage in stages] for path in stages[0]}
    else:
        final = layer_targets(network, kernels, settings.final_sparsity, "final_sparsity")
        sparsities = {path: settings.schedule.sparsities(steps, value) for path, value in final.items()}
    for path, values in sparsities.items():
        if sorted(values) != values:
            raise UserError(
                f"The sparsity of layer '{path}' would fall: {_shown(values)}. Expected sparsities that rise."
            )
    return sparsities


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in (values if len(values) <= 5 else [values[0], values[-1]]))


def check_structure(network: Network, kernels: Sequence[Kernel], structure: Structure) -> None:
    """Refuse kernels that cannot have a structure.

    Args:
        network: that the kernels belong to.
        kernels: to prune.
        structure: that they shall have.

    Raises:
        UserError: m does not divide the input axis, a kernel has no such axis or no channels of its own, or channels
            of the network's output would go.
    """
    layers = layer_paths(network.model)
    if structure.name == "channel":
        _check_channels(network.model, kernels, layers)
    if structure.name != "n_m":
        return
    group = structure.sizes[1]
    for kernel in kernels:
        if reason := _why_ungrouped(kernel, layers[kernel.layer]):
            raise UserError(
                f"'{kernel.name}' is {reason}: it adds over no input axis that could hold {structure.sizes[0]} of "
                f"{group}. Leave layer '{kernel.layer}' out of `layers`."
            )
        inputs = _input_channels(kernel)
        if inputs % group:
            raise UserError(
                f"structure={{n_m: {list(structure.sizes)}}} needs {group} to divide the inputs, but '{kernel.name}' "
                f"has {inputs}. Leave layer '{kernel.layer}' out of `layers`, or choose another structure."
            )


def _why_ungrouped(kernel: Kernel, layer: keras.Layer) -> str:
    """Return what a kernel is that adds over no inputs; nothing where it does."""
    if kernel.variable.name == TABLE:
        return "a table of embeddings"
    return "a depthwise kernel" if is_depthwise(layer, kernel.variable) else ""


def _input_channels(kernel: Kernel) -> int:
    """Return the length of the last axis over which a kernel adds, which is that of a convolution's input channels."""
    rank = len(kernel.variable.shape)
    inputs = set(range(rank)) - {axis % rank for axis in kernel.channel_axes}
    return int(kernel.variable.shape[max(inputs)]) if inputs else 1


def _check_channels(model: keras.Model, kernels: Sequence[Kernel], layers: Mapping[str, keras.Layer]) -> None:
    every = {path: layer for path, layer in layers.items() if holds_kernel(layer)}
    last = trace_kernel_inputs(model, every).last() if is_graph(model) else {list(every)[-1]}
    fit = [path for path, layer in every.items() if path not in last and is_kernel_layer(layer)]
    advice = f"Leave it out of `layers`, for example layers=[{','.join(fit)}]." if fit else "Choose another structure."
    for kernel in kernels:
        if not is_kernel_layer(layers[kernel.layer]):
            kind = type(layers[kernel.layer]).__name__
            raise UserError(
                f"structure=channel prunes channels of dense layers and convolutions, but '{kernel.layer}' is a {kind}"
                f", whose outputs are no channels that can go one by one. {advice}"
            )
        if kernel.layer in last:
            raise UserError(
                f"structure=channel would remove outputs of the network: '{kernel.layer}' is a last layer. {advice}"
            )


def kernel_matrix_shape(kernel: Kernel) -> tuple[int, int]:
    """Return the shape [inputs, outputs] of a kernel's matrix.

    Args:
        kernel: any.
    """
    return matrix_shape(tuple(kernel.variable.shape), kernel.channel_axes)
