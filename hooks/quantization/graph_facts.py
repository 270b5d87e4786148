"""What reaches the kernel layers of a functional model: found by running facts, not tensors, through its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from hooks.quantization.kernel_layers import KERNEL_LAYERS
from trainer.graph import as_functional, is_graph, is_of

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
RANKED = {
    "ZeroPadding",
    "Cropping",
    "UpSampling",
    "MaxPooling",
    "AveragePooling",
    "GlobalMaxPooling",
    "GlobalAveragePooling",
}
MERGERS = {"Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Mean", "Max", "Sum"}
SIGN_KEEPING = SHAPERS | DROPOUTS | MERGERS | {f"{name}{rank}D" for name in RANKED for rank in (1, 2, 3)}


@dataclass(frozen=True)
class Facts:
    """Say what is known of a tensor.

    Attributes:
        sources: paths of the kernel layers that it comes from, without another in between; MODEL_INPUT for the
            model's own input.
        non_negative: name of the layer because of which it is never negative; empty where it may be.
        dropout: name of the dropout layer that it comes from, with nothing but reshaping in between; else empty.
        quantizer: config of the input quantizer that made it, else None.
    """

    sources: frozenset[str] = frozenset({MODEL_INPUT})
    non_negative: str = ""
    dropout: str = ""
    quantizer: Mapping[str, Any] | None = None


@dataclass
class KernelInputs:
    """Hold what reaches kernel layers.

    Attributes:
        calls: by path of the kernel layer: facts about its input, one for each call.
        hidden: paths of kernel layers inside layers that are not functional models; nothing can be put before them.
    """

    calls: dict[str, list[Facts]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)

    def first(self) -> set[str]:
        """Return the layers that the model's input reaches without crossing another kernel layer."""
        return {path for path, calls in self.calls.items() if any(MODEL_INPUT in each.sources for each in calls)}

    def last(self) -> set[str]:
        """Return the layers whose output reaches no other kernel layer."""
        crossed = {source for path, calls in self.calls.items() for each in calls for source in each.sources - {path}}
        return self.calls.keys() - crossed


def trace_kernel_inputs(model: keras.Model, kernel_layers: Mapping[str, keras.Layer]) -> KernelInputs:
    """Return what reaches the kernel layers of a model.

    Args:
        model: for which `is_graph` holds.
        kernel_layers: every kernel layer below it, by path.
    """
    found = KernelInputs()
    paths = {id(layer): path for path, layer in kernel_layers.items()}

    def interpret(operation: Any, *args: Any, **kwargs: Any) -> Any:
        given = keras.tree.flatten((args, kwargs))
        facts = [each for each in given if isinstance(each, Facts)]
        if is_graph(operation):
            return run(operation, facts)
        result = _next_facts(operation, facts, [each for each in given if not isinstance(each, Facts)])
        crossed = _kernel_paths(operation, paths)
        if crossed:
            joined = Facts(frozenset().union(*(each.sources for each in facts)))
            for path in crossed:
                found.calls.setdefault(path, []).append(facts[0] if len(facts) == 1 else joined)
                if paths.get(id(operation)) != path:
                    found.hidden.add(path)
            result = Facts(frozenset(crossed), result.non_negative, result.dropout)
        return [result] * len(keras.tree.flatten(operation.output))

    def run(graph: keras.Model, inputs: list[Facts]) -> Any:
        # The walk that Keras itself clones and calls functional models with; it takes any values.
        return as_functional(graph)._run_through_graph(inputs, call_fn=interpret)

    run(model, [Facts() for _ in model.inputs])
    return found


def _kernel_paths(operation: Any, paths: Mapping[int, str]) -> list[str]:
    """Return the path of a kernel layer, or those of the kernel layers inside another layer."""
    if not isinstance(operation, keras.Layer):
        return []
    return [paths[id(layer)] for layer in operation._flatten_layers() if id(layer) in paths]


def _next_facts(operation: Any, facts: list[Facts], constants: list[Any]) -> Facts:
    """Return facts about the output of one operation; sources pass through."""
    from hooks.attention.gate import BernoulliGate  # classes of Keras, which is not imported for a look at options
    from hooks.quantization.input_quantizer import InputQuantizer

    if isinstance(operation, BernoulliGate):
        # What follows comes from the features; the branch beside them only says where. Zeros join what was quantized.
        return Facts(facts[0].sources, facts[0].non_negative, operation.name, facts[0].quantizer)
    sources: frozenset[str] = frozenset().union(*(each.sources for each in facts))
    if isinstance(operation, InputQuantizer):
        return Facts(sources, quantizer=operation.quantizer.config)
    if is_non_negative(operation):
        return Facts(sources, operation.name)
    kind = type(operation).__name__
    keeps_sign = (kind in SIGN_KEEPING and not _overshoots(operation)) or _is_linear_activation(operation)
    if not keeps_sign or not facts or any(_may_turn_sign(each) for each in constants):
        return Facts(sources)
    non_negative = facts[0].non_negative if all(each.non_negative for each in facts) else ""
    if kind in DROPOUTS and operation.rate:
        return Facts(sources, non_negative, operation.name)
    return Facts(sources, non_negative, facts[0].dropout if kind in SHAPERS | DROPOUTS else "")


def is_non_negative(operation: Any) -> bool:
    """Return whether the output of an operation is never negative, whatever goes in.

    Args:
        operation: a Keras layer or another operation of a graph, such as that of `keras.ops.relu`.
    """
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


def _is_linear_activation(operation: Any) -> bool:
    return isinstance(operation, keras.layers.Activation) and operation.activation is keras.activations.linear


def _overshoots(operation: Any) -> bool:
    """Return whether an operation fits curves through its input, which dip below 0 beside a peak."""
    return getattr(operation, "interpolation", "nearest") not in ("nearest", "bilinear")


def _may_turn_sign(constant: Any) -> bool:
    """Return whether an argument that is no tensor of the graph could make a sum or a product negative."""
    if constant is None or isinstance(constant, bool | str):
        return False
    return not isinstance(constant, int | float) or constant < 0
