"""summary.json: the results of a run, and the parameters, bytes and multiply-accumulates of its networks."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hookline.trainer.files import write_whole
from hookline.trainer.graph import graph_calls, is_graph, layer_paths
from hookline.trainer.hook import Bits, Hook, HostHook
from hookline.trainer.network import Network
from hookline.trainer.replicas.replica import NONE, describe_replicas
from hookline.trainer.run.machine import FLOAT32, describe_precision, estimated, peak_memory_bytes
from hookline.trainer.run.run import Run
from hookline.trainer.run.state import FLOAT, FLOAT_BITS, answer, shipped_bits
from hookline.trainer.run.times import HOOKS, judge_input


def build_summary(run: Run, ending: Mapping[str, Any], *, failed: bool = False) -> dict[str, Any]:
    """Return the contents of summary.json: `ending` and the other keys that trainer/README.md documents."""
    journal, times, trainer, settings = run.journal, run.times, run.trainer, run.settings
    shipped = run.shipped(run.step)
    bits = shipped_bits(trainer, shipped)
    unknown: dict[str, Any] = {}

    def networks() -> dict[str, Any]:
        return {name: summarize_network(each, bits[name], shipped[name]) for name, each in run.networks.items()}

    return {
        "recipe": run.recipe,
        **ending,
        "steps": run.step,
        "epochs": round(run.step / run.steps_per_epoch, 4),
        "seconds": round(times.elapsed, 3),
        "images_per_second": round(run.images_per_second, 1),
        "time_to_first_step": times.to_first_step(),
        "peak_memory_bytes": estimated("The peak of the memory", peak_memory_bytes, unknown),
        "precision": describe_precision(settings.get("precision", FLOAT32), trainer.loss_scale),
        "replicas": describe_replicas(settings.get("strategy", NONE), trainer.replica, run.training.batch_size),
        "input": judge_input(run, measure=not failed),
        "final": dict(journal.final),
        "best": run.best.as_json(),
        "hooks": {hook.name: _of_hook(hook, run) for hook in run.hooks},
        **measure_size(run.networks.values(), bits),
        "started_from": list(journal.started_from),
        "resumed_at": list(journal.resumed_at),
        "rolled_back": list(journal.rolled_back),
        "warnings": list(journal.warnings),
        "networks": estimated("What the networks are made of", networks, unknown),
        "run_dir": str(run.directory),
        **run._workers.summary(),
    }


def _of_hook(hook: Hook, run: Run) -> dict[str, Any]:
    spent = run.times.spent.get(HOOKS + hook.name, 0.0)
    return {**answer(hook, "summary", {}), **({"host_seconds": round(spent, 3)} if isinstance(hook, HostHook) else {})}


def write_summary(directory: Path, summary: Mapping[str, Any]) -> None:
    """Write summary.json atomically, with null for numbers that are not finite."""
    finite = json.loads(json.dumps(summary), parse_constant=lambda _: None)
    write_whole(directory / "summary.json", json.dumps(finite, indent=2) + "\n")


CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
TRANSPOSED = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)
DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
COUNTED = (keras.layers.Dense, keras.layers.EinsumDense, *CONVOLUTIONS, *TRANSPOSED, *DEPTHWISE, *SEPARABLE)
PRODUCTS = {
    *("Dot", "Attention", "AdditiveAttention", "Matmul", "Einsum", "Tensordot", "Vdot", "Inner", "Outer"),
    *("Conv", "DepthwiseConv", "SeparableConv", "ConvTranspose", "DotProductAttention", "Lambda"),
}
"""Layers and operations without weights that multiply their inputs, or may."""
WITHOUT = (keras.layers.Embedding, keras.layers.Normalization)
"""Layers with matrices of weights or statistics that are looked up or applied elementwise."""

Counts = dict[int, int]


def count_macs(call: Any) -> Counts | None:
    """Return the multiply-accumulates of a call's kernels for one example, padding included; None if unknown."""
    layer = call.operation
    if not isinstance(layer, COUNTED) or type(layer).call.__module__.partition(".")[0] != "keras":
        return None if _may_multiply(layer) else {}
    outputs, inputs = _size(call.output_tensors), _size(call.input_tensors)
    if outputs is None or inputs is None:
        return None
    if isinstance(layer, SEPARABLE):
        depthwise, pointwise = layer.depthwise_kernel, layer.pointwise_kernel
        places = outputs // pointwise.shape[-1]
        return {id(each): places * math.prod(each.shape) for each in (depthwise, pointwise)}
    return {id(layer.kernel): _kernel_macs(layer, inputs, outputs)}


def _kernel_macs(layer: keras.Layer, inputs: int, outputs: int) -> int:
    kernel = tuple(layer.kernel.shape)
    if isinstance(layer, keras.layers.EinsumDense):  # an equation such as "ab,bc->ac"
        terms, _, output = layer.equation.replace(" ", "").partition("->")
        labels = zip(terms.split(",")[1], kernel, strict=True)
        return outputs * math.prod(size for label, size in labels if label not in output)
    if isinstance(layer, TRANSPOSED):  # kernel [..., outputs, inputs]: each input goes to a whole window
        return inputs * math.prod(kernel[:-1])
    if isinstance(layer, DEPTHWISE):  # kernel [..., channels, multiplier]: each output takes one channel
        return outputs * math.prod(kernel[:-2])
    return outputs * math.prod(kernel[:-1])  # with groups, a kernel has the channels of one group


def _may_multiply(operation: object) -> bool:
    """Return whether an operation may multiply in a way that this module does not know."""
    if type(operation).__name__ in PRODUCTS:
        return True
    if not isinstance(operation, keras.Layer):
        return False
    layers = list(operation._flatten_layers())
    if any(isinstance(each, COUNTED) or type(each).__name__ in PRODUCTS for each in layers[1:]):
        return True
    matrices = (each for each in layers if not isinstance(each, WITHOUT))
    return any(len(weight.shape) > 1 for each in matrices for weight in each.weights)


def _size(tensors: Sequence[Any]) -> int | None:
    """Return the entries per example of the only tensor of a call; None if there are several or the shape is open."""
    if len(tensors) != 1 or None in tensors[0].shape[1:]:
        return None
    return math.prod(tensors[0].shape[1:])


@dataclass(frozen=True, eq=False)
class LayerSize:
    """Hold counts of a layer's own weights, without those of layers inside it; batch norm is folded."""

    path: str  # empty for the model itself, which may hold weights of its own
    layer: keras.Layer
    weights: dict[str, keras.Variable]  # and moving statistics
    trainable: int
    floats: int
    deployed_bits: float

    @property
    def total(self) -> int:
        return sum(math.prod(each.shape) for each in self.weights.values())


def measure_size(networks: Iterable[Network], bits: Mapping[str, Bits]) -> dict[str, Any]:
    """Return "params" and "bytes" of networks together, as `summary.json` holds them."""
    return _add_up([each for network in networks for each in layer_sizes(network, bits[network.name].stored)])


def _add_up(layers: Sequence[LayerSize]) -> dict[str, Any]:
    deployed = math.ceil(sum(layer.deployed_bits for layer in layers) / 8)
    return {
        "params": {"total": sum(each.total for each in layers), "trainable": sum(each.trainable for each in layers)},
        "bytes": {"float32": 4 * sum(each.floats for each in layers), "deployed": deployed},
    }


def layer_sizes(network: Network, bits: Mapping[str, float]) -> list[LayerSize]:
    """Return the size of every layer; each weight counts in the innermost layer that holds it, so that sizes add up."""
    layers = {"": network.model, **layer_paths(network.model)}
    owners = {id(weight): path for path, layer in layers.items() for weight in layer.weights}
    owned: dict[str, dict[str, keras.Variable]] = {path: {} for path in layers}
    for name, weight in network.weights.items():
        owned[owners[id(weight)]][name] = weight
    trained = set() if network.fixed else {id(weight) for weight in network.model.trainable_weights}
    return [_layer_size(path, layer, owned[path], trained, bits) for path, layer in layers.items()]


def _layer_size(
    path: str, layer: keras.Layer, weights: dict[str, keras.Variable], trained: set[int], bits: Mapping[str, float]
) -> LayerSize:
    counts = {name: math.prod(weight.shape) for name, weight in weights.items()}
    trainable = sum(counts[name] for name, weight in weights.items() if id(weight) in trained)
    if isinstance(layer, keras.layers.BatchNormalization):  # at inference a scale and an offset per channel
        floats = 2 * math.prod(layer.moving_mean.shape)
        return LayerSize(path, layer, weights, trainable, floats, FLOAT_BITS * floats)
    deployed = sum((count * bits.get(name, FLOAT_BITS) for name, count in counts.items()), start=0.0)
    return LayerSize(path, layer, weights, trainable, sum(counts.values()), deployed)


KINDS = {(True, True): "BNN", (True, False): "BWN", (False, True): "BAN"}
"""The kind of a network, by whether a layer has binary weights, and whether one has binary inputs."""


def precision(input_bits: int, weight_bits: int) -> str:
    """Return the name of a multiplication, such as "1-bit x 1-bit" or "float32"."""
    return "float32" if input_bits == weight_bits == FLOAT else f"{input_bits}-bit x {weight_bits}-bit"


def summarize_network(network: Network, bits: Bits, shipped: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the entry of a network in `summary.json`, from the bit widths and values of its shipped form."""
    layers = layer_sizes(network, bits.stored)
    calls = _calls(network)
    rows = [_row(each, bits, shipped, calls) for each in layers if _is_shown(each, calls)]
    counted: Counter[str] = Counter()
    for row in rows:
        counted.update(row["macs_by_precision"])
    macs = {
        "total": counted.total(),
        "by_precision": dict(counted.most_common()),
        "uncounted": [row["layer"] for row in rows if row["macs"] is None],
    }
    return {**_add_up(layers), "kind": _kind(layers, bits), "macs": macs, "layers": rows}


def _calls(network: Network) -> dict[int, list[Any]] | None:
    """Return the calls of every layer by its identity; None if the graph is not known."""
    if not is_graph(network.model):
        return None
    calls: dict[int, list[Any]] = {}
    for call in graph_calls(network.model):
        calls.setdefault(id(call.operation), []).append(call)
    return calls


def _is_shown(layer: LayerSize, calls: Mapping[int, list[Any]] | None) -> bool:
    """Return whether a layer has a row: it holds weights itself, or the graph calls it."""
    called = calls is None and layer.path != "" and not list(layer.layer._flatten_layers(include_self=False))
    called = called or (calls is not None and id(layer.layer) in calls)
    return bool(layer.weights) or (called and not isinstance(layer.layer, keras.layers.InputLayer))


def _row(
    layer: LayerSize, bits: Bits, shipped: Mapping[str, np.ndarray], calls: Mapping[int, list[Any]] | None
) -> dict[str, Any]:
    """Return the row of a layer, with None for unknown or absent values."""
    own = [] if calls is None else calls.get(id(layer.layer), [])
    matrices = {name: each for name, each in layer.weights.items() if len(each.shape) > 1}
    kernels = {id(each): name for name, each in matrices.items() if "bias" not in each.name}  # a GRU's has two axes
    macs = _macs(layer, own)
    input_bits = bits.inputs.get(layer.path, FLOAT)
    by_precision: Counter[str] = Counter()
    for number, (kernel, count) in enumerate((macs or {}).items()):
        # A separable convolution passes a sum to its second kernel: a float. A LoRA kernel is not a variable.
        name = precision(FLOAT if number else input_bits, bits.weights.get(kernels.get(kernel, ""), FLOAT))
        by_precision[name] += count
    return {
        "layer": layer.path or layer.layer.name,
        "kind": type(layer.layer).__name__,
        "output": list(own[0].output_tensors[0].shape[1:]) if own and own[0].output_tensors else None,
        "params": layer.total,
        "weight_bits": _mean_bits(layer, kernels.values(), bits.stored),
        "input_bits": input_bits if kernels and isinstance(layer.layer, COUNTED) else None,
        "bytes": layer.deployed_bits / 8,
        "sparsity": _sparsity(kernels.values(), shipped),
        "macs": None if macs is None else sum(macs.values()),
        "macs_by_precision": dict(by_precision),
    }


def _macs(layer: LayerSize, calls: list[Any]) -> dict[int, int] | None:
    """Return the multiply-accumulates of all calls of a layer by kernel; None if one is unknown."""
    if not calls:  # no graph, or inside a layer that is one call
        return None if any(len(weight.shape) > 1 for weight in layer.weights.values()) else {}
    found: Counter[int] = Counter()
    for call in calls:
        if (counted := count_macs(call)) is None:
            return None
        found.update(counted)
    return found


def _mean_bits(layer: LayerSize, kernels: Iterable[str], bits: Mapping[str, float]) -> float | None:
    sizes = {name: int(np.prod(layer.weights[name].shape)) for name in kernels}
    if not sum(sizes.values()):
        return None
    return sum(bits.get(name, FLOAT_BITS) * size for name, size in sizes.items()) / sum(sizes.values())


def _sparsity(kernels: Iterable[str], shipped: Mapping[str, np.ndarray]) -> float | None:
    values = [shipped[name] for name in kernels if name in shipped]
    entries = sum(each.size for each in values)
    return sum(each.size - np.count_nonzero(each) for each in values) / entries if entries else None


def _kind(layers: list[LayerSize], bits: Bits) -> str:
    """Return the kind of a network, whose first and last layer may stay in full precision."""
    weights = [bits.weights.get(name, FLOAT) for each in layers for name in each.weights]
    inputs = [bits.inputs.get(each.path, FLOAT) for each in layers]
    rounded = min([*weights, *inputs], default=FLOAT) < FLOAT
    return KINDS.get((1 in weights, 1 in inputs), "quantized" if rounded else "full precision")
