"""Find where an integer runtime rounds the tensors of a functional model, and insert quantizers there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.graphs import call_anew, check_unmasked
from hookline.hooks.kernels import KERNEL_LAYERS
from hookline.hooks.quantization.fake import activations_by_step, magnitudes, quantize_activations, quantize_averages
from hookline.hooks.quantization.selection import DROPOUTS, SHAPERS
from hookline.trainer.graph import AUGMENTING, as_functional, folded_norms, is_graph, is_linear, is_of, nodes_in_order
from hookline.trainer.ops.averages import STRETCH, STRETCHED, middle

if TYPE_CHECKING:
    from hookline.hooks.quantization.layers import ActivationQuantizer

RANKED = ("MaxPooling", "GlobalMaxPooling", "ZeroPadding", "Cropping")
KEEPING = SHAPERS | DROPOUTS | AUGMENTING | {"GaussianNoise", "GaussianDropout", "MaxPool", "GetItem"}
KEEPING |= {f"{name}{rank}D" for name in RANKED for rank in (1, 2, 3)}
AVERAGING = {f"AveragePooling{rank}D" for rank in (1, 2, 3)} | {"AveragePool"}
RESIZING = {"UpSampling2D", "Resizing", "Resize"}
JOINING = {"Concatenate", "Maximum", "Minimum"}  # runtimes require one range for all inputs and the output
ADDING = {"Add", "Subtract"}
FUSED_ACTIVATIONS = ("relu", "relu6", "hard_tanh")
WITHIN = ("linear", *FUSED_ACTIVATIONS)
SWISH = ("silu", "swish")


@dataclass
class Pass:
    """Round activations while a forward pass is traced; return them unchanged if `active` is None."""

    bits: int = 8
    ranges: tf.Tensor | None = None  # float32 [points, 2], nudged
    active: tf.Tensor | None = None  # bool scalar: whether values are rounded
    seen: dict[int, list[tf.Tensor]] | None = None  # by point, the extremes of each call; None: not observed
    factors: tf.Tensor | None = None  # float32 [points], on the ranges, if the optimizer trains them
    averaged: Collection[int] = ()  # points whose ranges are moving averages even then

    def __call__(self, layer: ActivationQuantizer, inputs: tf.Tensor) -> tf.Tensor:
        """Return the rounded inputs, and record their extremes."""
        if self.active is None or self.ranges is None:
            return inputs
        limits, observed = self.ranges[layer.point], self.seen is not None and layer.observes
        quantize = quantize_averages if layer.averages else quantize_activations
        if self.factors is None or layer.point in self.averaged:
            if observed:
                self._note(layer.point, magnitudes(inputs, with_mean=self.factors is not None))
            return tf.cond(self.active, lambda: quantize(inputs, limits, self.bits), lambda: tf.identity(inputs))
        factor, nothing = self.factors[layer.point], tf.zeros([3])
        made, seen = tf.cond(  # magnitudes are only needed for the initial step
            tf.logical_and(self.active, limits[1] > limits[0]),
            lambda: (activations_by_step(inputs, limits, factor, self.bits, quantize), nothing),
            lambda: (tf.identity(inputs), magnitudes(inputs) if observed else nothing),
        )
        if observed:
            self._note(layer.point, seen)
        return made

    def _note(self, point: int, seen: tf.Tensor) -> None:
        assert self.seen is not None
        self.seen.setdefault(point, []).append(seen)


@dataclass
class Inserter:
    """Insert quantizers into a model."""

    now: Pass  # shared by all quantizers
    names: list[str] = field(default_factory=list)  # by point: name of the operation whose output it rounds
    fixed: dict[int, tuple[float, float]] = field(default_factory=dict)  # constant ranges, by point
    _inner: dict[int, keras.Model] = field(default_factory=dict)
    _linear: dict[int, keras.Layer] = field(default_factory=dict)  # by id of a layer: its copy without the activation
    _layers: list[Any] = field(default_factory=list)
    _first: list[int] = field(default_factory=list)  # by point: the point whose range it shares, or itself
    _points: dict[int, int] = field(default_factory=dict)  # by id of a tensor of the old graphs: the point of its range
    _fused: set[int] = field(default_factory=set)  # ids of tensors that a runtime never writes

    def rebuilt(self, model: keras.Model, *, outer: bool = True) -> keras.Model:
        """Return the model with quantizers inserted; it shares layers and variables with the original."""
        graph = as_functional(model)
        self._fused |= _fused_tensors(graph)
        new: dict[int, Any] = {}
        for tensor in graph.inputs if outer else ():
            if _is_float(tensor):
                new[id(tensor)] = self._own(tensor, tensor, tensor.name)
        for node in nodes_in_order(graph):
            operation = node.operation
            if is_graph(operation):
                check_unmasked(operation, node.input_tensors)
                if id(operation) not in self._inner:
                    if sum(each.operation is operation for each in nodes_in_order(graph)) == 1:
                        self._carry(node.input_tensors, as_functional(operation).inputs)
                    self._inner[id(operation)] = self.rebuilt(operation, outer=False)
                operation = self._inner[id(operation)]
            args, kwargs = node.arguments.fill_in({id(each): new.get(id(each), each) for each in node.input_tensors})
            made = keras.tree.flatten(self._called(operation, args, kwargs))
            for old, tensor in zip(node.output_tensors, made, strict=True):
                new[id(old)] = self._placed(node, old, tensor)
            if is_graph(node.operation):
                self._carry(as_functional(node.operation).outputs, node.output_tensors)
        outputs = [new.get(id(tensor), tensor) for tensor in graph.outputs]
        packed = keras.tree.pack_sequence_as(graph._outputs_struct, outputs)
        if outer:
            self._number()
        return keras.Model(graph._inputs_struct, packed, name=model.name)

    def _carry(self, given: Sequence[Any], taken: Sequence[Any]) -> None:
        """Let tensors on one side of an inner model's boundary share the ranges of the same values on the other."""
        for before, after in zip(given, taken, strict=True):
            if id(before) in self._points:
                self._points[id(after)] = self._points[id(before)]

    def _called(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the output of an operation, split into parts with quantizers in between if runtimes split it."""
        name, function = operation.name, inner_activation(operation)
        if function is None and _activation(operation) not in SWISH:
            return operation(*args, **kwargs)
        options: dict[str, Any] = {"dtype": getattr(operation, "dtype_policy", None)}
        last = {**options, "activity_regularizer": getattr(operation, "activity_regularizer", None)}
        if function is None:
            x, function = args[0], keras.activations.silu
        else:
            if id(operation) not in self._linear:
                self._linear[id(operation)] = without_activation(operation)
            x = self._linear[id(operation)](*args, **kwargs)
            x = self._own(x, x, f"{name}_linear")
        number = len(self._layers) + 1
        if getattr(function, "__name__", "") not in SWISH:
            return keras.layers.Activation(function, name=f"{name}_activation_{number}", **last)(x)
        gate = keras.layers.Activation("sigmoid", name=f"{name}_sigmoid_{number}", **options)
        y = gate(x)
        y = self._own(y, y, f"{name}_sigmoid", _fixed_range(gate, self.now.bits))
        return keras.layers.Multiply(name=f"{name}_product_{number}", **last)([x, y])

    def _number(self) -> None:
        """Renumber the points, once it is known which of them share a range."""
        kept = [index for index, first in enumerate(self._first) if index == first]
        new = {old: index for index, old in enumerate(kept)}
        self.names = [self.names[index] for index in kept]
        self.fixed = {new[index]: limits for index, limits in self.fixed.items()}
        for layer in self._layers:
            layer.point = new[self._first[layer.point]]

    def _joined(self, given: Sequence[int | None]) -> int | None:
        """Let points share a range, and return the first of them; None if one has no range or a fixed one."""
        if not given or any(each is None or self._first[each] in self.fixed for each in given):
            return None
        firsts = {self._first[each] for each in given if each is not None}
        self._first = [min(firsts) if each in firsts else each for each in self._first]
        return min(firsts)

    def _placed(self, node: Any, old: Any, tensor: Any) -> Any:
        """Return a tensor with the quantizer that its place in the graph requires, if any."""
        if not _is_float(old) or is_graph(node.operation) or id(old) in self._fused or _is_input(node.operation):
            return tensor
        points = self._points
        sources = [points.get(id(each)) for each in node.input_tensors]
        given, kind = sources[0] if sources else None, type(node.operation).__name__
        if kind in JOINING and (joined := self._joined(sources)) is not None:
            points[id(old)] = joined
            return tensor
        if _keeps(node.operation):
            if given is not None:
                points[id(old)] = given
            return tensor
        if given is not None and (kind in AVERAGING or _is_bilinear(node.operation)):
            points[id(old)] = given
            return self._layer(node.operation.name, given, observes=False, averages=kind in AVERAGING)(tensor)
        return self._own(old, tensor, node.operation.name, _fixed_range(node.operation, self.now.bits))

    def _own(self, old: Any, tensor: Any, name: str, fixed: tuple[float, float] | None = None) -> Any:
        """Return a tensor with a quantizer that has its own point."""
        point = self._points[id(old)] = len(self.names)
        if fixed is not None:
            self.fixed[point] = fixed
        self.names.append(name)
        self._first.append(point)
        return self._layer(name, point, observes=fixed is None)(tensor)

    def _layer(self, after: str, point: int, *, observes: bool, averages: bool = False) -> keras.Layer:
        from hookline.hooks.quantization.layers import ActivationQuantizer  # a Keras class: no import to check options

        layer = ActivationQuantizer(point, observes, averages, name=f"{after}_quantizer_{len(self._layers) + 1}")
        layer.now, layer.after = self.now, after
        self._layers.append(layer)
        return layer


def _fused_tensors(graph: keras.Model) -> set[int]:
    """Return the ids of tensors that an integer runtime never writes: those inside operations that it fuses."""
    takers: dict[int, list[Any]] = {id(each): [None] for each in graph.outputs}
    for node in nodes_in_order(graph):
        for each in node.input_tensors:
            takers.setdefault(id(each), []).append(node.operation)
    norms, found = {id(layer): id(norm) for layer, norm in folded_norms(graph)}, set[int]()
    for node in nodes_in_order(graph):
        made = node.operation
        begins = is_linear(made) or type(made).__name__ in ADDING or is_of(made, ["BatchNormalization"])
        for tensor in node.output_tensors:
            taker, *others = takers.get(id(tensor), [None])
            if taker is None or others:
                continue
            if norms.get(id(made)) == id(taker) or _is_input(taker) or (begins and _is_relu(taker)):
                found.add(id(tensor))
    return found


def _is_float(tensor: Any) -> bool:
    return "float" in str(tensor.dtype)


def _activation(operation: Any) -> str:
    """Return the name of the activation that an operation is, or ends with; empty for none."""
    function = getattr(operation, "activation", None)
    return getattr(function, "__name__", "") if function is not None else type(operation).__name__.lower()


def inner_activation(operation: Any) -> Callable[..., Any] | None:
    """Return the activation inside a Keras layer with a kernel, if runtimes compute it separately; otherwise None."""
    if not is_of(operation, KERNEL_LAYERS) or not type(operation).__module__.startswith("keras."):
        return None
    apart = not isinstance(operation.activation, keras.Layer) and _activation(operation) not in WITHIN
    return operation.activation if apart else None


def without_activation(layer: keras.Layer) -> keras.Layer:
    """Return the layer without its activation, with the same variables; a layer from its config would have new ones."""
    made: keras.Layer = object.__new__(type(layer))
    vars(made).update({**vars(layer), "activation": keras.activations.linear, "activity_regularizer": None})
    vars(made).update(_inbound_nodes=[], _outbound_nodes=[])
    return made


def _is_input(operation: Any) -> bool:
    """Return whether an operation is another hook's input quantizer."""
    return type(operation).__name__ == "InputQuantizer"


def _is_relu(operation: Any) -> bool:
    """Return whether an operation is a ReLU that integer runtimes fuse with the preceding operation."""
    if is_of(operation, ["ReLU"]):
        plain = not operation.negative_slope and not operation.threshold
        return plain and operation.max_value in (None, 6)
    is_activation = is_of(operation, ["Activation"]) or not isinstance(operation, keras.Layer)
    return is_activation and _activation(operation) in FUSED_ACTIVATIONS


def _keeps(operation: Any) -> bool:
    """Return whether an integer runtime gives the output of an operation the range of its input."""
    name = type(operation).__name__
    if is_of(operation, ["Activation"]) and _activation(operation) == "linear":
        return True
    return name in KEEPING or (name == "UpSampling2D" and operation.interpolation == "nearest")


def _is_bilinear(operation: Any) -> bool:
    """Return whether an operation interpolates; integer runtimes give the result the range of its input."""
    return type(operation).__name__ in RESIZING and operation.interpolation != "nearest"


def _fixed_range(operation: Any, bits: int) -> tuple[float, float] | None:
    """Return the range that runtimes give the output of an operation regardless of its values; None for most."""
    name = _activation(operation)
    if name == "tanh":
        return -1.0, 1.0 - 2.0 ** (1 - bits)
    return (0.0, 1.0 - 2.0**-bits) if name in ("sigmoid", "softmax") else None


def write_out_quantizers(model: keras.Model, ranges: np.ndarray | None, now: Pass) -> keras.Model:
    """Return the model with Keras's fake quantization to constant ranges (None: none) for the quantizers of a pass."""
    from keras.src.quantizers.quantizers import FakeQuantWithMinMaxVars

    from hookline.hooks.quantization.layers import ActivationQuantizer, StepSizes

    def call(layer: Any, inputs: Any) -> Any:
        if ranges is None or isinstance(layer, StepSizes):
            return inputs
        limits = ranges[layer.point]
        inputs = stretched(inputs, limits, now.bits, layer.name) if layer.averages else inputs
        # The operation of Keras, not its function, which ignores `num_bits` for a Keras tensor.
        return FakeQuantWithMinMaxVars(num_bits=now.bits)(inputs, *limits.tolist())

    def is_own(layer: Any) -> bool:
        return isinstance(layer, StepSizes) or (isinstance(layer, ActivationQuantizer) and layer.now is now)

    return call_anew(model, is_own, call)


def stretched(inputs: Any, limits: np.ndarray, bits: int, name: str) -> Any:
    """Return means stretched as in `quantize_averages`, by a Keras layer."""
    low, high = limits.tolist()
    return keras.layers.Rescaling(1.0 + STRETCH, -STRETCH * middle(low, high, bits), name=f"{name}{STRETCHED}")(inputs)
