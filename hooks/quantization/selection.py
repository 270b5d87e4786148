"""Select the kernels to quantize, based on the graph of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from hookline.hooks.kernels import KERNEL_LAYERS, Kernel, is_kernel_layer
from hookline.trainer.errors import UserError
from hookline.trainer.graph import is_graph, is_of, layer_paths, select_layers, walk
from hookline.trainer.step.context import BuildContext

MODEL_INPUT = ""
ACTIVATED = ("Activation", "EinsumDense", *KERNEL_LAYERS)
NON_NEGATIVE_FUNCTIONS = {
    *("relu", "relu6", "sigmoid", "hard_sigmoid", "sparse_sigmoid", "softplus", "squareplus", "sparse_plus"),
    *("exponential", "softmax", "sparsemax"),
}
NON_NEGATIVE_OPERATIONS = {
    *("Relu", "Relu6", "Sigmoid", "HardSigmoid", "SparseSigmoid", "Softplus", "Squareplus", "SparsePlus"),
    *("Exp", "Softmax", "Sparsemax", "Absolute", "Square"),
}
DROPOUTS = {"Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"}
SHAPERS = {"Flatten", "Reshape", "Permute", "Transpose", "RepeatVector", "Identity", "Squeeze", "ExpandDims"}
RANKED = {f"{kind}Pooling" for kind in ("Max", "Average", "GlobalMax", "GlobalAverage")}
RANKED |= {"ZeroPadding", "Cropping", "UpSampling"}
MERGERS = {"Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Mean", "Max", "Sum"}
SIGN_KEEPING = SHAPERS | DROPOUTS | MERGERS | {f"{name}{rank}D" for name in RANKED for rank in (1, 2, 3)}


@dataclass(frozen=True)
class Facts:
    """Hold facts about a tensor."""

    sources: frozenset[str] = frozenset({MODEL_INPUT})
    """Paths of the nearest upstream kernel layers; MODEL_INPUT for the model's input."""
    non_negative: str = ""  # name of the layer that makes it non-negative; empty if it may be negative
    dropout: str = ""  # name of the dropout layer that it comes from, with only reshaping in between; else empty
    quantizer: Mapping[str, Any] | None = None  # config of the input quantizer that made it


@dataclass
class KernelInputs:
    """Hold facts about the inputs of kernel layers."""

    calls: dict[str, list[Facts]] = field(default_factory=dict)  # by path: facts about the input of each call
    hidden: set[str] = field(default_factory=set)
    """Paths of kernel layers inside layers that are not functional models; nothing can be put before them."""

    def first(self) -> set[str]:
        """Return the layers that the model's input reaches without crossing another kernel layer."""
        return {path for path, calls in self.calls.items() if any(MODEL_INPUT in each.sources for each in calls)}

    def last(self) -> set[str]:
        """Return the layers whose output reaches no other kernel layer."""
        crossed = {source for path, calls in self.calls.items() for each in calls for source in each.sources - {path}}
        return self.calls.keys() - crossed


def trace_kernel_inputs(model: keras.Model, kernel_layers: Mapping[str, keras.Layer]) -> KernelInputs:
    """Return facts about the inputs of a model's kernel layers, or of other given layers."""
    found = KernelInputs()
    paths = {id(layer): path for path, layer in kernel_layers.items()}

    def visit(operation: Any, facts: list[Facts], constants: list[Any]) -> Facts:
        result = _next_facts(operation, facts, constants)
        inner = operation._flatten_layers() if isinstance(operation, keras.Layer) else ()
        crossed = [paths[id(layer)] for layer in inner if id(layer) in paths]
        joined = facts[0] if len(facts) == 1 else Facts(_sources(facts))
        for path in crossed:
            found.calls.setdefault(path, []).append(joined)
            if paths.get(id(operation)) != path:
                found.hidden.add(path)
        return Facts(frozenset(crossed), result.non_negative, result.dropout) if crossed else result

    walk(model, Facts(), visit)
    return found


def _sources(facts: list[Facts]) -> frozenset[str]:
    return frozenset[str]().union(*(each.sources for each in facts))


def _next_facts(operation: Any, facts: list[Facts], constants: list[Any]) -> Facts:
    """Return facts about the output of one operation; sources pass through."""
    role = getattr(operation, "role", "")
    if role == "activation quantizer":
        return facts[0]
    if role == "gate":
        # The source is the features, not the branch that makes the gate. As in dropout, zeros join quantized values.
        return Facts(facts[0].sources, facts[0].non_negative, operation.name, facts[0].quantizer)
    sources = _sources(facts)
    if role == "input quantizer":
        return Facts(sources, quantizer=operation.quantizer.config)
    if is_non_negative(operation):
        return Facts(sources, operation.name)
    kind = type(operation).__name__
    is_linear = isinstance(operation, keras.layers.Activation) and operation.activation is keras.activations.linear
    # Other interpolations fit curves to their input, which undershoot 0 next to a peak.
    is_straight = getattr(operation, "interpolation", "nearest") in ("nearest", "bilinear")
    keeps_sign = is_linear or (kind in SIGN_KEEPING and is_straight)
    if not keeps_sign or not facts or any(_may_turn_sign(each) for each in constants):
        return Facts(sources)
    non_negative = facts[0].non_negative if all(each.non_negative for each in facts) else ""
    if kind in DROPOUTS and operation.rate:
        return Facts(sources, non_negative, operation.name)
    return Facts(sources, non_negative, facts[0].dropout if kind in SHAPERS | DROPOUTS else "")


def is_non_negative(operation: Any) -> bool:
    """Return whether the output of an operation is never negative, for any input."""
    if isinstance(operation, keras.layers.ReLU):
        return not operation.negative_slope
    if isinstance(operation, keras.layers.Softmax):
        return True
    if is_of(operation, ACTIVATED):
        activation = operation.activation
        if isinstance(activation, keras.Layer):
            return is_non_negative(activation)
        return getattr(activation, "__name__", "") in NON_NEGATIVE_FUNCTIONS
    if type(operation).__name__ == "Relu":
        return not getattr(operation, "negative_slope", 0.0)
    return type(operation).__name__ in NON_NEGATIVE_OPERATIONS


def _may_turn_sign(constant: Any) -> bool:
    """Return whether an argument that is not a tensor of the graph could make a sum or a product negative."""
    if constant is None or isinstance(constant, bool | str):
        return False
    return not isinstance(constant, int | float) or constant < 0


@dataclass(frozen=True)
class Selection:
    """Hold the layers that patterns select in one model."""

    layers: dict[str, keras.Layer]  # to quantize, by path, in the order of the model
    first: set[str]  # paths of the layers that receive the model's own input
    full_precision: list[str]  # paths of all other kernel layers
    inputs: KernelInputs | None  # facts about the inputs of kernel layers; None if the graph is not known


def choose_kernel_layers(model: keras.Model, patterns: str | Sequence[str], *, all_binary: bool) -> Selection:
    """Return the kernel layers that match, without the model's first and last ones unless `all_binary`."""
    matched = select_layers(model, patterns, accept=is_kernel_layer, kind="kernel layer")
    every = {path: layer for path, layer in layer_paths(model).items() if is_kernel_layer(layer)}
    inputs = trace_kernel_inputs(model, every) if is_graph(model) else None
    paths = list(every)
    first, last = (inputs.first(), inputs.last()) if inputs else ({paths[0]}, {paths[-1]})  # a subclassed model's order
    kept = set() if all_binary else first | last
    chosen = {path: layer for path, layer in matched.items() if path not in kept}
    if not chosen:
        raise UserError(
            f"The pattern {patterns!r} matches only first and last layers ({', '.join(matched)}), which stay in full "
            "precision. Set all_binary=true, or choose other layers."
        )
    return Selection(chosen, first, [path for path in paths if path not in chosen], inputs)


def refuse_quantized(model: keras.Model, *, activations: bool, steps: bool) -> None:
    """Refuse a second hook that rounds the activations of a model, or trains step sizes."""
    roles = {getattr(layer, "role", "") for layer in layer_paths(model).values()}
    taken = {"activation quantizer": activations, "step sizes": steps}
    if any(asked and role in roles for role, asked in taken.items()):
        raise UserError(
            f"Two hooks round the activations of '{model.name}' or train step sizes. Expected only one such "
            "hook; give the others activation_bits=null, ranges=average and different `layers`."
        )


def left_to_others(
    kernels: Sequence[Kernel], patterns: str | Sequence[str], key: str, context: BuildContext
) -> list[Kernel]:
    """Return the kernels that "*" leaves to other hooks that round them; other patterns must not match any of them.

    Clustered kernels are not left out. Another hook of the same kind (state "active") must not take all kernels.
    """
    states, rounded = context.states, context.rounded
    taken = [each for each in kernels if f"{rounded.get(each.name)}/centroids/{each.name}" not in states]
    taken = [each for each in taken if each.name in rounded]
    idle = len(taken) == len(kernels) and all(f"{rounded[each.name]}/active" in states for each in taken)
    if taken and (idle or "*" not in ([patterns] if isinstance(patterns, str) else patterns)):
        other = rounded[taken[0].name]
        raise UserError(
            f"Two hooks round the kernel '{taken[0].name}': {other} and {key}. Expected one hook per kernel: "
            f"change hooks.{other}.layers or hooks.{key}.layers, where '*' leaves out the kernels of {other}."
        )
    return taken
