"""Which kernels are quantized, by the graph of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from hookline.hooks.kernels import KERNEL_LAYERS, is_kernel_layer
from hookline.hooks.quantization.quantizers import Quantizer
from hookline.hooks.rebuild import call_anew
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph, is_of
from hookline.trainer.select import layer_paths, select_layers

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
    """Hold facts about a tensor.

    Attributes:
        sources: paths of the kernel layers that it comes from, without another in between; MODEL_INPUT for the
            model's own input.
        non_negative: name of the layer because of which it is never negative; empty if it may be.
        dropout: name of the dropout layer that it comes from, with nothing but reshaping in between; else empty.
        quantizer: config of the input quantizer that made it, else None.
    """

    sources: frozenset[str] = frozenset({MODEL_INPUT})
    non_negative: str = ""
    dropout: str = ""
    quantizer: Mapping[str, Any] | None = None


@dataclass
class KernelInputs:
    """Hold what reaches kernel layers."""

    calls: dict[str, list[Facts]] = field(default_factory=dict)
    """By path of the kernel layer: facts about its input, one for each call."""
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
    """Return what reaches the kernel layers of a model."""
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


def trace_inputs(model: keras.Model, is_wanted: Callable[[Any], bool]) -> list[tuple[Any, Facts]]:
    """Return the operations that are wanted, each of which passes its input on, with facts about that of each call.

    Where the input is the model's own, and only there, its source is MODEL_INPUT.
    """
    found: list[tuple[Any, Facts]] = []

    def interpret(operation: Any, *args: Any, **kwargs: Any) -> Any:
        given = keras.tree.flatten((args, kwargs))
        facts = [each for each in given if isinstance(each, Facts)]
        if is_graph(operation):
            return run(operation, facts)
        if is_wanted(operation):
            found.append((operation, facts[0]))
            return facts
        result = _next_facts(operation, facts, [each for each in given if not isinstance(each, Facts)])
        return [replace(result, sources=frozenset())] * len(keras.tree.flatten(operation.output))

    def run(graph: keras.Model, inputs: list[Facts]) -> Any:
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
    from hookline.hooks.attention.gate import BernoulliGate
    from hookline.hooks.quantization.input_quantizer import InputQuantizer

    if isinstance(operation, BernoulliGate):
        # What follows comes from the features; the branch beside them only says where. Zeros join the quantized values.
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
    """Return whether the output of an operation is never negative, whatever goes in."""
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
    """Return whether an argument that is not a tensor of the graph could make a sum or a product negative."""
    if constant is None or isinstance(constant, bool | str):
        return False
    return not isinstance(constant, int | float) or constant < 0


@dataclass(frozen=True)
class Selection:
    """Hold what a pattern chose in one model."""

    layers: dict[str, keras.Layer]  # to quantize, by path, in the order of the model
    first: set[str]  # paths of the layers that see the model's own input
    full_precision: list[str]  # paths of all other kernel layers
    inputs: KernelInputs | None  # what reaches the kernel layers; None when the model has no known graph


def choose_kernel_layers(model: keras.Model, patterns: str | Sequence[str], *, all_binary: bool) -> Selection:
    """Return the kernel layers that match, without the model's first and last ones unless `all_binary`.

    In a model with a known graph, first are the layers that the model's input reaches without crossing another kernel
    layer, and last those that reach no other. In a subclassed model they are the first and the last that it lists.
    """
    matched = select_layers(model, patterns, accept=is_kernel_layer, kind="kernel layer")
    every = {path: layer for path, layer in layer_paths(model).items() if is_kernel_layer(layer)}
    inputs = trace_kernel_inputs(model, every) if is_graph(model) else None
    paths = list(every)
    first, last = (inputs.first(), inputs.last()) if inputs else ({paths[0]}, {paths[-1]})
    kept = set() if all_binary else first | last
    chosen = {path: layer for path, layer in matched.items() if path not in kept}
    if not chosen:
        raise UserError(
            f"Nothing to quantize: the pattern {patterns!r} matches only first and last layers ({', '.join(matched)}), "
            "which stay in full precision. Set all_binary=true, or choose other layers."
        )
    return Selection(chosen, first, [path for path in paths if path not in chosen], inputs)


def layers_to_precede(selection: Selection, quantizer: Quantizer, *, first_too: bool) -> dict[str, keras.Layer]:
    """Return the selected layers that need an input quantizer, after checking that it makes sense there.

    Layers whose input comes from an equal quantizer already are left out.
    """
    inputs = selection.inputs
    if inputs is None:
        raise UserError(
            "A subclassed model has no graph into which input quantizers could be inserted. "
            "Set input_quantizer=null to quantize its weights only, or build it as a functional model."
        )
    wanted = {path: layer for path, layer in selection.layers.items() if first_too or path not in selection.first}
    missing = {}
    for path, layer in wanted.items():
        if path in inputs.hidden or path not in inputs.calls:
            raise UserError(
                f"No input quantizer can be put before layer '{path}': it is inside a layer that is not a functional "
                "model. Set input_quantizer=null, or leave it out of the `layers` pattern."
            )
        if not _is_done(path, inputs.calls[path], quantizer):
            _check_sign(path, inputs.calls[path], quantizer)
            missing[path] = layer
    return missing


def _is_done(path: str, calls: list[Facts], quantizer: Quantizer) -> bool:
    """Return whether every input of a layer comes from an equal quantizer; one from another is an error."""
    present = [each.quantizer for each in calls if each.quantizer is not None]
    if any(config != quantizer.config for config in present):
        raise UserError(
            f"The input of layer '{path}' is quantized by {present[0]} already, and now by {quantizer.config} again. "
            "Let one hook only choose this layer."
        )
    return len(present) == len(calls)


def _check_sign(path: str, calls: list[Facts], quantizer: Quantizer) -> None:
    if not quantizer.is_sign:
        return
    for facts in calls:
        if facts.non_negative:
            raise UserError(
                f"The input of layer '{path}' is never negative, because of '{facts.non_negative}': its sign would be "
                f"+1 always, and {quantizer.name} would tell the layer nothing. Replace that activation "
                "(model.activation=hard_tanh, in models that have this option), or set "
                "input_quantizer={name: dorefa, k_bit: 2} or input_quantizer=null."
            )


def dropout_advice(selection: Selection, paths: Iterable[str], quantizer: Quantizer) -> list[str]:
    """Return a line for each dropout whose zeros a sign turns into +1."""
    if not quantizer.is_sign or selection.inputs is None:
        return []
    fed = {facts.dropout: path for path in paths for facts in selection.inputs.calls[path] if facts.dropout}
    return [
        f"the dropout layer '{dropout}' feeds {quantizer.name} before layer '{path}': what it drops becomes sign(0) = "
        "+1, not 0. Put it before the batch norm, or leave it out."
        for dropout, path in fed.items()
    ]


def write_out_input_quantizers(model: keras.Model) -> keras.Model:
    """Return the model with `keras.ops` in place of every `InputQuantizer`: the same layers, the same variables.

    Its outputs are the same. Gradients do not go through the operations, so it serves inference alone.
    """
    from hookline.hooks.quantization.input_quantizer import InputQuantizer  # a class of Keras: not for options

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, InputQuantizer):
            return quantize(*args, **kwargs, quantizer=layer.quantizer)
        return layer(*args, **kwargs)

    return call_anew(model, lambda layer: isinstance(layer, InputQuantizer), call)


def quantize(inputs: Any, *, quantizer: Quantizer) -> Any:
    """Return quantized inputs, computed by operations of Keras. NaN stays NaN."""
    ops = keras.ops
    wide = ops.cast(inputs, "float32")
    if quantizer.name == "dorefa":
        steps = float(2**quantizer.bits - 1)
        values = ops.round(ops.clip(wide, 0.0, 1.0) * steps) * (1.0 / steps)
    elif quantizer.name == "ste_tern":
        values = _ternary(wide, **quantizer.arguments)
    else:
        values = ops.where(ops.isnan(wide), wide, ops.where(wide >= 0.0, 1.0, -1.0))
    return ops.cast(values, inputs.dtype)


def _ternary(
    wide: Any, *, threshold: float = 0.05, ternary_weight_networks: bool = False, clip_value: float = 1.0
) -> Any:
    del clip_value  # of the gradient
    ops = keras.ops
    limit = 0.7 * ops.mean(ops.abs(wide)) if ternary_weight_networks else threshold
    return ops.where(ops.abs(wide) <= limit, 0.0, ops.sign(wide))
