"""The sparsity of each pruned kernel, and reports on the entries that are left."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import TABLE, Kernel, Target, holds_kernel, is_depthwise, is_kernel_layer
from hookline.hooks.options import AVERAGE
from hookline.hooks.pruning.selector import matrix_shape
from hookline.hooks.pruning.settings import Settings, Sparsity, Structure
from hookline.hooks.quantization.selection import trace_kernel_inputs
from hookline.trainer.errors import UserError
from hookline.trainer.graph import is_graph, layer_paths, select_layers
from hookline.trainer.network import Network


def layer_targets(network: Network, kernels: Sequence[Kernel], sparsity: Sparsity, option: str) -> dict[str, float]:
    """Return the sparsity of each pruned layer, by path."""
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
        raise UserError(f"{option} has no sparsity for {', '.join(missing)}. Expected a pattern for each of `layers`.")
    return targets


def layer_sparsities(
    network: Network, kernels: Sequence[Kernel], settings: Settings, steps: Sequence[int]
) -> dict[str, list[float]]:
    """Return the sparsity of each pruned layer after each update, by path."""
    if settings.stages:
        stages = [layer_targets(network, kernels, stage, "stages") for stage in settings.stages]
        sparsities = {path: [stage[path] for stage in stages] for path in stages[0]}
    else:
        final = layer_targets(network, kernels, settings.final_sparsity, "final_sparsity")
        sparsities = {path: settings.sparsities(steps, value) for path, value in final.items()}
    for path, values in sparsities.items():
        if sorted(values) != values:
            raise UserError(
                f"The sparsity of '{path}' would fall from {values[0]:g} to {values[-1]:g}. Expected a rising one."
            )
    return sparsities


def check_structure(network: Network, kernels: Sequence[Kernel], structure: Structure) -> None:
    """Refuse kernels that cannot be pruned with a structure."""
    layers = layer_paths(network.model)
    if structure.name == "channel":
        _check_channels(network.model, kernels, layers)
    for kernel in kernels if structure.name == "n_m" else ():
        n, m = structure.sizes
        if kernel.variable.name == TABLE or is_depthwise(layers[kernel.layer], kernel.variable):
            raise UserError(
                f"'{kernel.name}' is a table of embeddings or a depthwise kernel: it sums over no input axis that "
                f"could hold {n} of {m}. Leave layer '{kernel.layer}' out of `layers`."
            )
        rank = len(kernel.variable.shape)
        axes = set(range(rank)) - {axis % rank for axis in kernel.channel_axes}
        inputs = kernel.variable.shape[max(axes)] if axes else 1  # for a convolution, the input channels
        if inputs % m:
            raise UserError(f"{m} does not divide {inputs} inputs of '{kernel.name}'. Leave its layer out of `layers`.")


def _check_channels(model: keras.Model, kernels: Sequence[Kernel], layers: Mapping[str, keras.Layer]) -> None:
    every = {path: layer for path, layer in layers.items() if holds_kernel(layer)}
    last = trace_kernel_inputs(model, every).last() if is_graph(model) else {list(every)[-1]}
    fit = [path for path, layer in every.items() if path not in last and is_kernel_layer(layer)]
    advice = f"Leave it out of `layers`, for example layers=[{','.join(fit)}]." if fit else "Choose another structure."
    for kernel in kernels:
        if not is_kernel_layer(layers[kernel.layer]):
            kind = type(layers[kernel.layer]).__name__
            raise UserError(
                f"structure=channel prunes dense layers and convolutions, but '{kernel.layer}' is a {kind}. {advice}"
            )
        if kernel.layer in last:
            raise UserError(f"structure=channel would remove outputs: '{kernel.layer}' is a last layer. {advice}")


VALUE_BITS, POINTER_BITS = 32, 32


def csr_bytes(inputs: int, outputs: int, kept: int) -> int:
    """Return the bytes of a matrix in compressed sparse row format (CSR), one row per input, packed column indices."""
    column_bits = (outputs - 1).bit_length()
    return math.ceil((kept * (VALUE_BITS + column_bits) + POINTER_BITS * (inputs + 1)) / 8)


def stored_bytes(kernel: Kernel, values: Any) -> int:
    """Return the bytes of a kernel as it would be shipped: CSR, or dense float32 if that is smaller."""
    return min(csr_bytes(*matrix_shape(kernel), count_kept(values)), 4 * kernel.size)


def count_kept(values: Any) -> int:
    """Return the number of entries that are not exactly zero."""
    return int(np.count_nonzero(tf.convert_to_tensor(values).numpy()))


def layer_report(
    network: Network, kernels: Sequence[Kernel], masks: Mapping[str, tf.Variable], others: Sequence[Target] = ()
) -> dict[str, Any]:
    """Return the entries left in each layer, in all pruned kernels together, and in all kernels of the network."""
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.layer].append(kernel)
    rows = [{"layer": path, **_row(network, group, masks)} for path, group in groups.items()]
    total = {"layer": "total", **_row(network, kernels, masks)}
    kept = total["kept"] + sum(count_kept(each.variable.value) for each in others)
    whole = {"layer": "network", **_counts(total["entries"] + sum(each.size for each in others), kept)}
    layers = [*rows, *([total] if len(rows) > 1 else []), *([whole] if others else [])]
    return {"layers": layers, "total": total, "network": whole}


def _counts(entries: int, kept: int) -> dict[str, Any]:
    return {
        "entries": entries,
        "kept": kept,
        "times_fewer": round(entries / kept, 3) if kept else None,
        "sparsity": round(1.0 - kept / entries, 6),
    }


def _row(network: Network, kernels: Sequence[Kernel], masks: Mapping[str, tf.Variable]) -> dict[str, Any]:
    kept: dict[str, int] = defaultdict(int)
    sparse = 0
    for kernel in kernels:
        for name, variable in _parts(network, kernel, masks[kernel.name]).items():
            kept[name] += count_kept(variable)
        sparse += csr_bytes(*matrix_shape(kernel), count_kept(kernel.variable.value))
    entries = sum(kernel.size for kernel in kernels)
    return {
        **_counts(entries, kept["sparsity"]),
        **{name: round(1.0 - count / entries, 6) for name, count in kept.items()},
        "dense_bytes": 4 * entries,
        "sparse_bytes": sparse,
    }


def _parts(network: Network, kernel: Kernel, mask: tf.Variable) -> dict[str, Any]:
    """Return a kernel's values under the names of its sparsity scalars."""
    slots = {
        "moving_average" if attribute == AVERAGE else attribute.strip("_"): slot.value
        for attribute, slot in network.optimizer_slots(kernel.name).items()
    }
    return {"sparsity": kernel.variable.value, "mask": mask, **slots}
