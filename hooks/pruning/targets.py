"""Which kernels are pruned, and how sparse each of them is to become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras

from hooks.pruning.criteria import matrix_shape
from hooks.pruning.options import Sparsity, Structure
from hooks.pruning.settings import Settings
from hooks.quantization.graph_facts import trace_kernel_inputs
from hooks.quantization.kernel_layers import DEPTHWISE, KERNEL_NAMES, Kernel, find_kernels, is_kernel_layer
from trainer.errors import UserError
from trainer.graph import is_graph, is_of
from trainer.network import Network
from trainer.select import layer_paths, select_layers


def select_kernels(network: Network, patterns: str | Sequence[str]) -> list[Kernel]:
    """Return the kernels of the dense layers and convolutions that match.

    Args:
        network: built.
        patterns: on paths or names of kernel layers.

    Raises:
        UserError: a pattern matches nothing, or a kernel is not trainable.
    """
    layers = select_layers(network.model, patterns, accept=is_kernel_layer, kind="kernel layer")
    trained = {id(variable) for variable in network.trainable_variables.values()}
    for path, layer in layers.items():
        if any(each.name in KERNEL_NAMES and id(each) not in trained for each in layer.weights):
            raise UserError(
                f"The kernel of layer '{path}' is not trainable, so it cannot be pruned. "
                "Set trainable=True on the layer, or leave it out of the `layers` pattern."
            )
    return find_kernels(network, layers)


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
        UserError: m does not divide the input axis, a kernel has no such axis, or channels of the output would go.
    """
    layers = layer_paths(network.model)
    if structure.name == "channel":
        _check_outputs(network.model, kernels, layers)
    if structure.name != "n_m":
        return
    group = structure.sizes[1]
    for kernel in kernels:
        if len(kernel.channel_axes) > 1 or is_of(layers[kernel.layer], DEPTHWISE):
            raise UserError(
                f"'{kernel.name}' is a depthwise kernel: it adds over no input axis that could hold "
                f"{structure.sizes[0]} of {group}. Leave layer '{kernel.layer}' out of `layers`."
            )
        inputs = _input_channels(kernel)
        if inputs % group:
            raise UserError(
                f"structure={{n_m: {list(structure.sizes)}}} needs {group} to divide the inputs, but '{kernel.name}' "
                f"has {inputs}. Leave layer '{kernel.layer}' out of `layers`, or choose another structure."
            )


def _input_channels(kernel: Kernel) -> int:
    """Return the length of the axis over which a kernel adds, height and width of a convolution apart."""
    (channels,) = (axis % len(kernel.variable.shape) for axis in kernel.channel_axes)
    last = len(kernel.variable.shape) - 1
    return int(kernel.variable.shape[last - 1 if channels == last else last])


def _check_outputs(model: keras.Model, kernels: Sequence[Kernel], layers: Mapping[str, keras.Layer]) -> None:
    every = {path: layer for path, layer in layers.items() if is_kernel_layer(layer)}
    last = trace_kernel_inputs(model, every).last() if is_graph(model) else {list(every)[-1]}
    found = [kernel.layer for kernel in kernels if kernel.layer in last]
    if found:
        raise UserError(
            f"structure=channel would remove outputs of the network: '{found[0]}' is a last layer. "
            f"Leave it out of `layers`, for example layers={_others(every, last)}."
        )


def _others(every: Mapping[str, keras.Layer], last: set[str]) -> str:
    return "[" + ",".join(path for path in every if path not in last) + "]"


def kernel_matrix_shape(kernel: Kernel) -> tuple[int, int]:
    """Return the shape [inputs, outputs] of a kernel's matrix.

    Args:
        kernel: any.
    """
    return matrix_shape(tuple(kernel.variable.shape), kernel.channel_axes)
