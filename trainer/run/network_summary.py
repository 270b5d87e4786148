"""What a network is made of: layer by layer, its weights in bits and bytes, and what an example costs to compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.graph import Call, graph_calls, is_graph
from trainer.network import Network
from trainer.run.multiply_accumulates import COUNTED, count_macs
from trainer.run.size import LayerSize, Size, add_up, layer_sizes

FLOAT = 32
FULL = "full precision"
KINDS = {(True, True): "BNN", (True, False): "BWN", (False, True): "BAN"}
"""What a network is called by whether a layer has binary weights, and whether one has binary inputs."""
INPUT_LAYER = "InputLayer"


@dataclass(frozen=True)
class Forms:
    """Hold in what form a network's weights and inputs are shipped.

    Attributes:
        shipped: what evaluation uses in place of weights and moving statistics, by name.
        stored_bits: an entry by variable name, for variables not shipped as float32.
        weight_bits: bits in which weights are multiplied, by variable name, where that is not a float32.
        input_bits: bits of what a layer sees, by its path, where that is not a float32.
    """

    shipped: Mapping[str, np.ndarray] = field(default_factory=dict)
    stored_bits: Mapping[str, float] = field(default_factory=dict)
    weight_bits: Mapping[str, int] = field(default_factory=dict)
    input_bits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """Hold what is known of a layer.

    Attributes:
        name: its path.
        kind: its class.
        output: shape of what it returns, without the batch; None where there is no graph that says it.
        params: weights, moving statistics included.
        weight_bits: bits an entry of its kernels in the stored form, scales included; None without a kernel.
        input_bits: bits of what its kernel is multiplied with; None without a kernel.
        bytes: as shipped, perhaps a fraction; batch norm folded.
        sparsity: share of exact zeros among its kernels' entries; None without a kernel.
        macs: multiply-accumulates for one example; None where that is not known.
        macs_by_precision: likewise, by precision as `precision` calls it.
    """

    name: str
    kind: str
    output: tuple[int | None, ...] | None
    params: int
    weight_bits: float | None
    input_bits: int | None
    bytes: float
    sparsity: float | None
    macs: int | None
    macs_by_precision: Mapping[str, int]


@dataclass(frozen=True)
class NetworkSummary:
    """Hold what a network is made of.

    Attributes:
        kind: "BNN" (binary weights and inputs), "BWN" (weights), "BAN" (inputs), "quantized" or "full precision".
        rows: of its layers, in its order.
        size: the sum of all rows.
    """

    kind: str
    rows: tuple[Row, ...]
    size: Size

    @property
    def macs_by_precision(self) -> dict[str, int]:
        """Return the multiply-accumulates for one example that are known, by precision, most first."""
        found: dict[str, int] = {}
        for row in self.rows:
            for name, count in row.macs_by_precision.items():
                found[name] = found.get(name, 0) + count
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    @property
    def uncounted(self) -> list[str]:
        """Return the layers of which it is not known how much they multiply."""
        return [row.name for row in self.rows if row.macs is None]

    def as_json(self) -> dict[str, Any]:
        """Return what stands in `summary.json`, beside the size."""
        by_precision = self.macs_by_precision
        macs = {"total": sum(by_precision.values()), "by_precision": by_precision, "uncounted": self.uncounted}
        return {"kind": self.kind, "macs": macs, "layers": [_as_json(row) for row in self.rows]}


def precision(input_bits: int, weight_bits: int) -> str:
    """Return what a multiplication is called, such as "1-bit x 1-bit" or "float32".

    Args:
        input_bits: of the input.
        weight_bits: of the weight.
    """
    return "float32" if input_bits == weight_bits == FLOAT else f"{input_bits}-bit x {weight_bits}-bit"


def summarize_network(network: Network, forms: Forms) -> NetworkSummary:
    """Return what a network is made of. Its totals are those of `measure_size`: both add up the same layers.

    Args:
        network: built. Where its graph is not known, shapes of outputs and multiply-accumulates are not either.
        forms: of its weights and inputs.
    """
    layers = layer_sizes(network, forms.stored_bits)
    calls = _calls(network)
    rows = tuple(_row(each, network, forms, calls) for each in layers if _is_shown(each, calls))
    return NetworkSummary(_kind(layers, forms), rows, add_up(layers))


def _calls(network: Network) -> dict[int, list[Call]] | None:
    """Return the calls of every layer by its identity; None where the graph is not known."""
    if not is_graph(network.model):
        return None
    calls: dict[int, list[Call]] = {}
    for call in graph_calls(network.model):
        calls.setdefault(id(call.operation), []).append(call)
    return calls


def _is_shown(layer: LayerSize, calls: Mapping[int, list[Call]] | None) -> bool:
    """Return whether a layer has a row: it holds weights itself, or the graph calls it."""
    called = calls is None and layer.path != "" and not list(layer.layer._flatten_layers(include_self=False))
    called = called or (calls is not None and id(layer.layer) in calls)
    return bool(layer.weights) or (called and type(layer.layer).__name__ != INPUT_LAYER)


def _row(layer: LayerSize, network: Network, forms: Forms, calls: Mapping[int, list[Call]] | None) -> Row:
    own = [] if calls is None else calls.get(id(layer.layer), [])
    kernels = {id(weight): name for name, weight in layer.weights.items() if len(weight.shape) > 1}
    macs = _macs(layer, own) if calls is not None else (None if _multiplies(layer) else {})
    input_bits = forms.input_bits.get(layer.path, FLOAT)
    by_precision: dict[str, int] = {}
    for number, (kernel, count) in enumerate((macs or {}).items()):
        # What a separable convolution passes on to its second kernel is a sum: a float.
        name = precision(FLOAT if number else input_bits, forms.weight_bits.get(kernels[kernel], FLOAT))
        by_precision[name] = by_precision.get(name, 0) + count
    return Row(
        name=layer.path or network.model.name,
        kind=type(layer.layer).__name__,
        output=own[0].outputs[0][1:] if own and own[0].outputs else None,
        params=layer.total,
        weight_bits=_mean_bits(layer, kernels.values(), forms.stored_bits),
        input_bits=input_bits if kernels and isinstance(layer.layer, COUNTED) else None,
        bytes=layer.deployed_bits / 8,
        sparsity=_sparsity(kernels.values(), forms.shipped),
        macs=None if macs is None else sum(macs.values()),
        macs_by_precision=by_precision,
    )


def _macs(layer: LayerSize, calls: list[Call]) -> dict[int, int] | None:
    """Return the multiply-accumulates of all calls of a layer by kernel; None where one is not known."""
    if not calls:  # inside a layer that is one call: what it does there is not known
        return None if _multiplies(layer) else {}
    found: dict[int, int] = {}
    for call in calls:
        counted = count_macs(call)
        if counted is None:
            return None
        for kernel, count in counted.items():
            found[kernel] = found.get(kernel, 0) + count
    return found


def _multiplies(layer: LayerSize) -> bool:
    return any(len(weight.shape) > 1 for weight in layer.weights.values())


def _mean_bits(layer: LayerSize, kernels: Iterable[str], bits: Mapping[str, float]) -> float | None:
    sizes = {name: int(np.prod(layer.weights[name].shape)) for name in kernels}
    if not sum(sizes.values()):
        return None
    return sum(bits.get(name, float(FLOAT)) * size for name, size in sizes.items()) / sum(sizes.values())


def _sparsity(kernels: Iterable[str], shipped: Mapping[str, np.ndarray]) -> float | None:
    values = [shipped[name] for name in kernels if name in shipped]
    entries = sum(each.size for each in values)
    return sum(each.size - np.count_nonzero(each) for each in values) / entries if entries else None


def _kind(layers: list[LayerSize], forms: Forms) -> str:
    """Return what a network is called. Its first and last layer may well stay in full precision."""
    weights = [forms.weight_bits.get(name, FLOAT) for each in layers for name in each.weights]
    inputs = [forms.input_bits.get(each.path, FLOAT) for each in layers]
    rounded = min([*weights, *inputs], default=FLOAT) < FLOAT
    return KINDS.get((1 in weights, 1 in inputs), "quantized" if rounded else FULL)


def _as_json(row: Row) -> dict[str, Any]:
    return {
        "layer": row.name,
        "kind": row.kind,
        "output": None if row.output is None else list(row.output),
        "params": row.params,
        "weight_bits": row.weight_bits,
        "input_bits": row.input_bits,
        "bytes": row.bytes,
        "sparsity": row.sparsity,
        "macs": row.macs,
        "macs_by_precision": dict(row.macs_by_precision),
    }
