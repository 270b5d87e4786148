"""What is pruned, how far, and the report of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import TABLE, Kernel, Target, find_kernels, holds_kernel, is_depthwise, is_kernel_layer
from hookline.hooks.options import AVERAGE, check_choice, check_number, check_patterns
from hookline.hooks.pruning.criteria import CRITERIA, matrix_shape
from hookline.hooks.pruning.options import Sparsity, Structure, check_layer_sparsity, parse_structure
from hookline.hooks.pruning.schedules import Schedule, check_used, parse_schedule
from hookline.hooks.quantization.selection import trace_kernel_inputs
from hookline.trainer.errors import UserError
from hookline.trainer.graph import is_graph
from hookline.trainer.network import Network
from hookline.trainer.select import layer_paths, select_layers

DEFAULT_SPARSITY = 0.5
SCOPES = ("per_layer", "global")


@dataclass(frozen=True)
class Settings:
    """Hold checked options."""

    layers: str | list[str]  # patterns on kernel layers
    schedule: Schedule  # when masks change
    final_sparsity: Sparsity  # of the last masks, one for all layers or by pattern
    stages: list[Sparsity]  # sparsities of an iterative schedule; empty otherwise
    hysteresis: float | None  # how much splicing favours kept entries; None if nothing comes back
    scope: str  # "per_layer" or "global"
    structure: Structure  # what is kept or pruned together
    criterion: str  # how units are ranked


def parse_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings of a config."""
    structure = parse_structure(given["structure"])
    stages = _parse_stages(given["stages"])
    schedule = parse_schedule({**given, "stages": len(stages)})
    check_used(schedule.name, given)
    expected = "a number of at least 1, such as 1.1"
    hysteresis = check_number("hysteresis", given["hysteresis"], minimum=1.0, expected=expected)
    settings = Settings(
        layers=check_patterns("layers", given["layers"]),
        schedule=schedule,
        final_sparsity=_final_sparsity(given["final_sparsity"], stages, structure),
        stages=stages,
        hysteresis=hysteresis if schedule.name == "splicing" else None,
        scope=check_choice("scope", given["scope"], SCOPES),
        structure=structure,
        criterion=check_choice("criterion", given["criterion"], CRITERIA),
    )
    _check_scope(settings)
    return settings


def _parse_stages(stages: Any) -> list[Sparsity]:
    if stages is None:
        return []
    if not isinstance(stages, Sequence) or isinstance(stages, str) or not stages:
        raise UserError(f"Invalid stages: {stages!r}. Expected rising sparsities, such as [0.5, 0.8, 0.9], or null.")
    return [check_layer_sparsity("stages", stage) for stage in stages]


def _final_sparsity(given: Any, stages: Sequence[Sparsity], structure: Structure) -> Sparsity:
    stated = None if given == "auto" else check_layer_sparsity("final_sparsity", given)
    if stated is not None and stages and stated != stages[-1]:
        raise UserError(f"final_sparsity={given} is not the last of stages, {stages[-1]}. Expected the same, or auto.")
    chosen = stages[-1] if stages else stated
    own = structure.own_sparsity
    if own is None:
        return DEFAULT_SPARSITY if chosen is None else chosen
    values = [] if chosen is None else list(chosen.values()) if isinstance(chosen, dict) else [chosen]
    if any(not math.isclose(value, own, abs_tol=1e-6) for value in values):
        raise UserError(
            f"A final sparsity of {chosen} contradicts structure={structure.config}, which prunes {own:g}. "
            "Expected that value, or auto."
        )
    return own


def _check_scope(settings: Settings) -> None:
    if settings.scope != "global":
        return
    if settings.structure.name == "n_m":
        raise UserError("scope=global has no meaning with n_m: every group keeps its share. Expected scope=per_layer.")
    if any(isinstance(sparsity, dict) for sparsity in (settings.final_sparsity, *settings.stages)):
        raise UserError("scope=global takes one sparsity for all layers. Expected a number, or scope=per_layer.")


def select_kernels(network: Network, patterns: str | Sequence[str]) -> list[Kernel]:
    """Return the kernels of the layers that match."""
    layers = select_layers(network.model, patterns, accept=holds_kernel, kind="kernel layer")
    return find_kernels(network, layers, doing="pruned")


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
        raise UserError(
            f"{option} gives no sparsity for {', '.join(missing)}. Expected a pattern for every layer to prune: add "
            f"'{missing[0]}', or leave these layers out of `layers`."
        )
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
    """Refuse kernels that cannot have a structure."""
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
    """Return the kind of a kernel that sums over no inputs; empty for others."""
    if kernel.variable.name == TABLE:
        return "a table of embeddings"
    return "a depthwise kernel" if is_depthwise(layer, kernel.variable) else ""


def _input_channels(kernel: Kernel) -> int:
    """Return the length of the last axis that a kernel sums over: of a convolution, the input channels."""
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
                f", whose outputs are not channels that can go one by one. {advice}"
            )
        if kernel.layer in last:
            raise UserError(
                f"structure=channel would remove outputs of the network: '{kernel.layer}' is a last layer. {advice}"
            )


def kernel_matrix_shape(kernel: Kernel) -> tuple[int, int]:
    """Return the shape [inputs, outputs] of a kernel's matrix."""
    return matrix_shape(tuple(kernel.variable.shape), kernel.channel_axes)


VALUE_BITS, POINTER_BITS = 32, 32


def column_bits(columns: int) -> int:
    """Return the bits of a column index: ceil(log2(columns))."""
    return (columns - 1).bit_length()


def csr_bytes(inputs: int, outputs: int, kept: int) -> int:
    """Return the bytes of a matrix in compressed sparse rows (CSR).

    A kept entry takes its float32 value and a column index of ceil(log2(outputs)) bits, packed; each row, and the end,
    takes a pointer of 4 bytes. A row is one input: of a convolution, one (height, width, input channel).
    """
    return math.ceil((kept * (VALUE_BITS + column_bits(outputs)) + POINTER_BITS * (inputs + 1)) / 8)


def stored_bytes(kernel: Kernel, values: Any) -> int:
    """Return the bytes of a kernel as it would be shipped: CSR, or dense where that is smaller."""
    inputs, outputs = kernel_matrix_shape(kernel)
    return min(csr_bytes(inputs, outputs, count_kept(values)), 4 * kernel.size)


def count_kept(values: Any) -> int:
    """Return how many entries are not exactly zero."""
    return int(np.count_nonzero(tf.convert_to_tensor(values).numpy()))


def layer_report(
    network: Network, kernels: Sequence[Kernel], masks: Mapping[str, tf.Variable], others: Sequence[Target] = ()
) -> dict[str, Any]:
    """Return what is left of each layer, of all pruned kernels together, and of all kernels of the network."""
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.layer].append(kernel)
    rows = [{"layer": path, **_row(network, group, masks)} for path, group in groups.items()]
    total = {"layer": "total", **_row(network, kernels, masks)}
    whole = {"layer": "network", **_whole(total, others)}
    layers = [*rows, *([total] if len(rows) > 1 else []), *([whole] if others else [])]
    return {"layers": layers, "total": total, "network": whole}


def _whole(total: Mapping[str, Any], others: Sequence[Target]) -> dict[str, Any]:
    entries = total["entries"] + sum(each.size for each in others)
    return _counts(entries, total["kept"] + sum(count_kept(each.variable.value) for each in others))


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
        sparse += csr_bytes(*kernel_matrix_shape(kernel), count_kept(kernel.variable.value))
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
