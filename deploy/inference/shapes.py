"""Shapes of the values of a graph, and what its steps share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from hookline.deploy.inference.bits import Backend, stream_bytes, unpack_last, unpack_stream
from hookline.deploy.inference.container import require
from hookline.deploy.inference.graph import CODEBOOK, FLOAT16, SIGN, Activation, Encoded, Graph, Op
from hookline.trainer.errors import UserError

FLOAT, INTEGER, BINARY = "float", "integer", "binary"
MAX_ENTRIES = 2**28  # of a value of one example: 1 GiB in float32
MAX_TERMS = 2**24  # of a sum of signs: float32 holds no larger integers exactly


@dataclass(frozen=True)
class Value:
    """Describe a value of one example."""

    shape: tuple[int, ...]
    kind: str  # "float", "integer" (exact sums of signs) or "binary" (-1 and +1)


def infer(graph: Graph, tensors: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """Return descriptions of a graph's values, by name, after checking that each array fits where it is used."""
    arrays = _Arrays(tensors)
    values = {graph.input_name: _checked("the input", Value(graph.input_shape, FLOAT))}
    for op in graph.ops:
        owner = f"{op.op} {op.name!r}"
        for name in op.inputs:
            require(name in values, f"Input {name!r:.60} of {owner} is not a value before it.")
        require(op.output not in values, f"Output {op.output!r:.60} of {owner} exists already.")
        values[op.output] = _checked(owner, _infer(owner, op, [values[name] for name in op.inputs], arrays))
    is_made = graph.output in values and graph.output != graph.input_name
    require(is_made, f"The output {graph.output!r:.60} is not a value that an operation gives.")
    if unused := sorted(tensors.keys() - arrays.used):
        raise UserError(f"Array {unused[0]!r:.60} is used by no operation.")
    if graph.classes is not None:
        named, count = len(graph.classes), values[graph.output].shape[-1]
        require(named == count, f"{named} classes are named. Expected {count}, as the output has.")
    return values


def _checked(owner: str, value: Value) -> Value:
    is_small = math.prod(value.shape) <= MAX_ENTRIES
    require(is_small, f"{owner} gives values of shape {value.shape}. Expected {MAX_ENTRIES:,} entries at most.")
    return value


def _infer(owner: str, op: Op, inputs: list[Value], arrays: _Arrays) -> Value:
    if op.op in ("add", "multiply", "subtract", "concatenate"):
        most, wanted = (2, "two") if op.op == "subtract" else (len(inputs), "two or more")
        require(2 <= len(inputs) <= most, f"{owner} has {len(inputs)} inputs. Expected {wanted}.")
        return _concatenate(owner, op, inputs) if op.op == "concatenate" else _broadcast(owner, inputs)
    require(len(inputs) == 1, f"{owner} has {len(inputs)} inputs. Expected one.")
    (value,) = inputs
    match op.op:
        case "dense" | "conv2d" | "depthwise_conv2d":
            return _kernel_layer(owner, op, value, arrays)
        case "threshold":
            arrays.check_thresholds(owner, op, value)
        case "scale_shift":
            for key in ("scale", "shift"):
                arrays.get(owner, op.fields[key], np.float32, value.shape[-1:])
    return _of_one(owner, op, value)


class _Arrays:
    """Check the arrays of a file, each where it is used."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors
        self.used: set[str] = set()

    def get(
        self, what: str, name: str, dtype: type[np.generic] | None = None, shape: tuple[int, ...] | None = None
    ) -> np.ndarray:
        """Return an array of the type and the shape, where these are known."""
        require(name in self._tensors, f"Array {name!r:.60} of {what} is not in the file.")
        self.used.add(name)
        array = self._tensors[name]
        fits = (dtype is None or array.dtype == dtype) and (shape is None or array.shape == shape)
        wanted = f"{np.dtype(dtype).name if dtype else ''} {'' if shape is None else shape}".strip()
        require(fits, f"Array {name!r:.60} of {what} is {array.dtype} {array.shape}. Expected {wanted}.")
        return array

    def check_encoded(self, what: str, encoded: Encoded) -> None:
        count = math.prod(encoded.shape)
        if encoded.encoding == SIGN:
            self.get(what, encoded.tensor, np.uint8, (stream_bytes(count, 1),))
            if encoded.scale is not None:
                shape = self.get(what, encoded.scale, np.float32).shape
                fits = shape in {(1,), encoded.shape[-1:]}
                require(fits, f"The scale of the {what} has shape {shape}. Expected one per channel.")
        elif encoded.encoding == CODEBOOK:
            assert encoded.bits is not None
            assert encoded.values is not None
            most = 2**encoded.bits
            stream = self.get(what, encoded.tensor, np.uint8, (stream_bytes(count, encoded.bits),))
            values = self.get(what, encoded.values, np.float32)
            fits = values.ndim == 1 and 0 < len(values) <= most
            require(fits, f"The {what} has {values.shape} values. Expected 1 to {most}.")
            if len(values) < most:
                largest = unpack_stream(stream, count, encoded.bits).max()
                require(largest < len(values), f"The {what} refers to a value that it does not have.")
        else:
            dtype = np.float16 if encoded.encoding == FLOAT16 else np.float32
            self.get(what, encoded.tensor, dtype, encoded.shape)

    def check_thresholds(self, owner: str, op: Op, value: Value) -> None:
        is_sum = value.kind == INTEGER
        require(is_sum, f"The input of {owner} is of kind {value.kind}. Expected integer sums; use sign.")
        array = self.get(owner, op.fields["thresholds"])
        fits = array.dtype in (np.int8, np.int16, np.int32) and array.shape == value.shape[-1:]
        require(fits, f"The thresholds of {owner} are {array.dtype} {array.shape}. Expected an int per channel.")
        if (descending := op.fields["descending"]) is not None:
            self.get(owner, descending, np.uint8, (stream_bytes(value.shape[-1], 1),))


def _kernel_layer(owner: str, op: Op, value: Value, arrays: _Arrays) -> Value:
    kernel: Encoded = op.fields["kernel"]
    bias: Encoded | None = op.fields["bias"]
    rank = 2 if op.op == "dense" else 4
    require(len(kernel.shape) == rank, f"The kernel of {owner} has shape {kernel.shape}. Expected {rank} axes.")
    if rank == 4:
        _check_image(owner, value)
    taken, received, terms = kernel.shape[-2], value.shape[-1], math.prod(kernel.shape[:-1])
    require(taken == received, f"The kernel of {owner} takes {taken} channels. Received: {received}.")
    arrays.check_encoded(f"kernel of {owner}", kernel)
    filters = kernel.shape[-1] * (taken if op.op == "depthwise_conv2d" else 1)
    if bias is not None:
        arrays.check_encoded(f"bias of {owner}", bias)
        require(bias.shape == (filters,), f"The bias of {owner} has shape {bias.shape}. Expected ({filters},).")
    exact = value.kind == BINARY and kernel.encoding == SIGN and op.op != "depthwise_conv2d"
    is_exact = not exact or terms <= MAX_TERMS
    require(is_exact, f"{owner} adds up {terms:,} signs. Expected {MAX_TERMS:,} at most.")
    kind = INTEGER if exact and kernel.scale is None and bias is None else FLOAT
    places = value.shape[:-1] if rank == 2 else _slide(owner, value.shape, kernel.shape[:2], op)
    return Value((*places, filters), kind)


def window_pads(size: int, window: int, stride: int, dilation: int, padding: str) -> tuple[int, int, int]:
    """Return how often a window fits along an axis, and the zeros before and after: TensorFlow's rule."""
    reach = dilation * (window - 1) + 1
    if padding == "valid":
        return (size - reach) // stride + 1, 0, 0
    count = -(-size // stride)
    total = max(0, (count - 1) * stride + reach - size)
    return count, total // 2, total - total // 2


def _check_image(owner: str, value: Value) -> None:
    require(len(value.shape) == 3, f"{owner} got values of shape {value.shape}. Expected 3 axes.")


def _slide(owner: str, shape: Sequence[int], window: Sequence[int], op: Op) -> tuple[int, int]:
    """Return how often a window fits along rows and columns."""
    dilation = op.fields.get("dilation", (1, 1))
    strides, padding = op.fields["strides"], op.fields["padding"]
    has_one = max(strides) == 1 or max(dilation) == 1
    require(has_one, f"{owner} has strides {strides} and dilation {dilation}. Expected one of them to be 1.")
    rows, columns = (window_pads(shape[i], window[i], strides[i], dilation[i], padding)[0] for i in (0, 1))
    fits = rows > 0 and columns > 0
    require(fits, f"The window of {owner} is larger than its input, {shape[0]} x {shape[1]}.")
    return rows, columns


def _of_one(owner: str, op: Op, value: Value) -> Value:
    """Return the output of an operation without a kernel."""
    shape, fields = value.shape, op.fields
    kind = FLOAT if op.op in ("average_pool2d", "global_average_pool2d", "zero_pad2d") else value.kind
    if op.op.endswith("2d"):
        _check_image(owner, value)
    match op.op:
        case "sign" | "threshold":
            return Value(shape, BINARY)
        case "max_pool2d" | "average_pool2d":
            return Value((*_slide(owner, shape, fields["pool_size"], op), shape[2]), kind)
        case "global_max_pool2d" | "global_average_pool2d":
            return Value(shape[-1:], kind)
        case "flatten":
            return Value((math.prod(shape),), kind)
        case "reshape":
            given: tuple[int, ...] = fields["shape"]
            is_same = math.prod(given) == math.prod(shape)
            require(is_same, f"{owner} gives {given} from {shape}. Expected as many entries.")
            return Value(given, kind)
        case "zero_pad2d":
            rows, columns = (shape[i] + sum(fields["padding"][i]) for i in (0, 1))
            return Value((rows, columns, shape[2]), kind)
        case "upsample2d":
            return Value((shape[0] * fields["size"][0], shape[1] * fields["size"][1], shape[2]), kind)
        case _:
            return Value(shape, FLOAT)


def _broadcast(owner: str, inputs: Sequence[Value]) -> Value:
    shapes = [each.shape for each in inputs]
    if len({len(each) for each in shapes}) == 1:
        with suppress(ValueError):
            return Value(np.broadcast_shapes(*shapes), FLOAT)
    raise UserError(f"The inputs of {owner} have shapes {shapes}. Expected one shape.")


def _concatenate(owner: str, op: Op, inputs: Sequence[Value]) -> Value:
    shapes, axis = [list(each.shape) for each in inputs], op.fields["axis"]
    rank = len(shapes[0])
    place = axis + rank if axis < 0 else axis - 1  # without the batch
    is_known = 0 <= place < rank and all(len(each) == rank for each in shapes)
    require(is_known, f"{owner} got axis {axis} and shapes {shapes}. Expected an axis that all have, not the batch.")
    total = sum(each[place] for each in shapes)
    joined = {(*each[:place], total, *each[place + 1 :]) for each in shapes}
    is_one = len(joined) == 1
    require(is_one, f"The inputs of {owner} have shapes {shapes}. Expected them to differ along axis {axis} only.")
    kinds = {each.kind for each in inputs}
    return Value(joined.pop(), kinds.pop() if len(kinds) == 1 else FLOAT)


Step = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Computes a value from others, each [batch, ...]: float32, int32, or signs packed along the last axis."""


@dataclass(frozen=True)
class Context:
    """Hold what a step is built from."""

    op: Op
    inputs: tuple[Value, ...]
    output: Value
    tensors: Mapping[str, np.ndarray]
    backend: Backend


def to_float(value: Value) -> Activation:
    """Return the conversion of a value to float32 [batch, *shape]."""
    if value.kind == FLOAT:
        return lambda array: array
    if value.kind == BINARY:
        return lambda array: to_signs(array, value).astype(np.float32)
    return lambda array: array.astype(np.float32)


def to_signs(array: np.ndarray, value: Value) -> np.ndarray:
    """Return packed signs as -1 and +1: int8 [batch, *shape]."""
    signs = unpack_last(array, value.shape[-1]).view(np.int8)
    signs += signs
    signs -= 1
    return signs
